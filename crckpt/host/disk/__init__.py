"""Files and directories: write them durably, read untrusted ones safely, and find out who can change them."""
