"""Probes of this host: each fact is tried out, never guessed from a version. `probe` runs them all."""
