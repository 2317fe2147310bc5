"""Filters that the database judges: of retries, and on trial."""
