"""Look into a checkpoint or a log: show, compare, search memory, write a core file, explain a failure."""
