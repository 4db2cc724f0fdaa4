"""Generate the parts of the documents that the code knows: commands, causes, JSON documents, tables."""
