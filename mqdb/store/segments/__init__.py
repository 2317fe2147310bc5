"""Segments of the log, their partitions, and their archive.

segments           ranges of the log
partitions         their tables, and how these go
archived_segments  what is in Parquet files
"""
