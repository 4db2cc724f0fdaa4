"""Find the process that a user names, and hold it by a pidfd."""
