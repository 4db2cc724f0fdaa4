"""Store an image directory in packs: read pages, find known ones, compress and write the others."""
