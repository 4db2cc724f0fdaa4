"""Checks on a live tree before a dump, and on a checkpoint before a restore. Pure over what host and store read."""
