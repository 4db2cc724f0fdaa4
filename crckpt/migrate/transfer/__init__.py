"""Send what the other host lacks: packs of pages, files, and what logs have gained."""
