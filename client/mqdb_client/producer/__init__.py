"""Producers: `producer` is where to begin, `sending` is what happens to a message."""
