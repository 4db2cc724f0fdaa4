"""The program that a process runs, as people name it: its script, module, jar or service, or its executable."""
