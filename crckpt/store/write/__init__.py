"""From an image directory to packs: read pages, find those that are known, compress and write the others."""
