"""Doctor: what is wrong with a broker, and what to do about it.

    examine      runs the checks one by one: `ALL_CHECKS` is the list
    finding      what a check says, and the thresholds above which it warns
    server_checks, replication_checks, session_checks, service_checks   of PostgreSQL, and of who runs the services
    log_checks, group_checks, schedule_checks                            of what is in the broker

Nothing here changes anything. No check reads more of the log than single records, but for `filters`.
"""
