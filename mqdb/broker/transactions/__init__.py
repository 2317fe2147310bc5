"""End half messages, and ask about those without an end."""
