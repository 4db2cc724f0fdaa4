"""System calls that Python has no function for, as thin typed functions. Numbers and structures are the kernel's."""
