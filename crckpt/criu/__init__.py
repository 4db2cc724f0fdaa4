"""CRIU: its command lines, finding and following it, the hold, and what its log means."""
