"""Checks on a live tree before a dump. Each topic has a file; `checks` gathers what they find."""
