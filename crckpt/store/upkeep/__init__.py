"""Verify, repair and clean up a store."""
