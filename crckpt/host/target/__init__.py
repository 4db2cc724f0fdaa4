"""Find the process that a user names, and pin it by a pidfd."""
