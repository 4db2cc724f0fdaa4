"""Migration: move a running tree to another host, so that at every moment at most one copy of it runs."""
