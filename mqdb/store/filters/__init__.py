"""Filters that the database evaluates: on retries, and for trials.

retry_filter  filters on retries
matches       the number of messages that match a condition
"""
