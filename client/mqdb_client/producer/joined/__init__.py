"""Sends in the caller's transaction.

joined_sending      the producer's part: records, hooks and selectors
joined_send         appends on the caller's connection
callers_connection  connections of psycopg, SQLAlchemy and, in django_connection, Django
"""
