"""Look into a checkpoint, or at a failure: show, compare, search, write a core file, explain."""
