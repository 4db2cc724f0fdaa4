"""Dump a tree: what was asked, what is known of the tree, rounds while it runs, the freeze, and the commit."""
