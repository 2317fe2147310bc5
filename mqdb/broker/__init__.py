"""Verbs: the requests of clients to a broker. One request is one transaction, and each function takes a Connection.

The caller that opens the connection decides whether the request commits by itself (AUTOCOMMIT, as `create_engine` sets
it) or joins a transaction.

    log           send, look up, read in bulk
    dispatch      give messages their queue offsets, and index their keys
    topics        create, change and find topics
    consumers     pull, own queues, commit, reset, send back
    filters       check filters and try them
    schedule      delays, timers, recurring sends
    transactions  half messages
    dead_letters  show dead letters and send them again
    clients       register, send heartbeats, leave, and answer requests
    acl, broker_settings, archive, doctor   rights, settings that clients obey, Parquet files, checks
"""
