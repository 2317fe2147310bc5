"""Segments of the log, their partitions, and their archive.

segments           ranges of the log
partitions         their tables, and the removal of these
archived_segments  the segments in Parquet files
"""
