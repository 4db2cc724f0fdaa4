"""CRIU's image files as frozen values: bytes in, values out; no file is opened here."""
