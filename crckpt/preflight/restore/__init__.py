"""Checks on a checkpoint before a restore. Each topic has a file; `judge` gathers what they find."""
