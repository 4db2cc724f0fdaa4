"""Checks on a checkpoint before a restore. Each subject has a file; `judge` gathers what they find."""
