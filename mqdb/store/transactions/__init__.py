"""Half messages, and the checks of those without an end."""
