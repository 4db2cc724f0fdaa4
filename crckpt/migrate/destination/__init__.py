"""The destination of a move: receive a tree, hold it, let it run."""
