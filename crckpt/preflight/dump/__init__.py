"""Checks on a live tree before a dump. Each topic has a file; `plan` gathers what they find."""
