"""Probes of this host: each fact is tried out, never guessed from a version. `host` runs them all."""
