"""Sends in the caller's transaction.

joined_sending      what the producer does
joined_send         a send that belongs to a transaction
callers_connection  connections of psycopg, SQLAlchemy and, in django_connection, Django
"""
