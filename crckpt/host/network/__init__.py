"""Addresses that move between hosts: read, add and remove them, fence them off, and announce them."""
