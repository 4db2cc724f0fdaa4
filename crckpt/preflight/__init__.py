"""Checks on a live tree before a dump (`dump/`), and on a checkpoint before a restore (`restore/`), one file a subject.

Pure: they judge what crckpt read from the host and the store, and read nothing themselves.
"""
