"""Consumers: `push_consumer` is where to begin."""
