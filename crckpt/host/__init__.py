"""Access to this machine: programs, files, processes, kernel features. Other folders use these modules."""
