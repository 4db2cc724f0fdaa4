"""Move all jobs of a host."""
