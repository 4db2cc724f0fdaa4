"""The guard of a move: it takes moved addresses back, and ends an unfinished tree, if crckpt dies in the middle."""
