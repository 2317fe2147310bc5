"""Deliver what waits for a time, and look at it."""
