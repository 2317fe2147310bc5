"""Send, look up, read in bulk."""
