"""The use cases, one a file: each checks, calls what is below, and returns a frozen result. Nothing is printed here."""
