"""Namespaces: who owns those of a tree, and new ones for a restored tree or a rehearsal."""
