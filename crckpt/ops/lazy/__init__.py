"""Lazy restore: a tree runs while its memory is still being filled, by a helper process."""
