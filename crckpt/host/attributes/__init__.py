"""Attributes of tasks and sockets that CRIU does not save: read at a dump, set at a restore."""
