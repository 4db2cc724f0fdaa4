"""Check, before anything is frozen, whether a tree can move to the other host."""
