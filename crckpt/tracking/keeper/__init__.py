"""The keeper: a small process that holds a tree's tracker from one dump to the next."""
