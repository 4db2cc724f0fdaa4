"""Checks on a checkpoint before a restore. Each topic has a file; `checks` gathers what they find."""
