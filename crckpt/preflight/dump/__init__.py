"""Checks on a live tree before a dump. Each subject has a file; `plan` gathers what they find."""
