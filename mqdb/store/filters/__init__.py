"""Filters that the database judges: of retries, and on trial.

retry_filter  filters on retries
matches       how many messages a condition holds for
"""
