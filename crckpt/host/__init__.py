"""The only door to this machine: programs, files, processes, kernel features."""
