"""Read checkpoints into files and memory. Every byte is verified before it is returned."""
