"""Start, hold, signal and end processes. `run` is the only module that starts programs."""
