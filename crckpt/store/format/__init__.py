"""The bytes of the store: packs, indexes, extents, manifests. The format is specified in `crckpt.store`."""
