"""Verify, repair and collect: what keeps a store whole, and small."""
