"""Segments of the log, their partitions, and their archive."""
