"""Restore a checkpoint: survey the host, fill memory, check what was restored; or rehearse all that without a trace."""
