"""Topics, what names them, and their ranges for readers in bulk."""
