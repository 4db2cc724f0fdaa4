"""Helpers that make system calls in threads of other processes: a tracer must do nothing else."""
