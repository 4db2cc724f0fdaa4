"""Checks of a live tree before a dump (`dump`) and of a checkpoint before a restore (`restore`), a file for each topic.

Pure: they judge what crckpt read from the host and the store, and read nothing themselves.
"""
