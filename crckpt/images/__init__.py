"""CRIU's image files as frozen values: bytes in, values out. Nothing here opens a file."""
