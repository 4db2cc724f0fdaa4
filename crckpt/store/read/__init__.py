"""From packs to files and memory. Every byte is verified before it is given."""
