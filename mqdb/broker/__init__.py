"""Verbs: what clients ask of a broker. One request is one transaction, and each function takes a Connection.

Whoever opened the connection decides whether the request commits by itself (AUTOCOMMIT, as `create_engine`
sets it) or joins a transaction.
"""
