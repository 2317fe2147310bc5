"""Doctor: the problems of a broker, and their remedies.

    examine      runs the checks one by one: `ALL_CHECKS` is the list
    finding      the result of a check, and the thresholds above which it warns
    server_checks, replication_checks, session_checks, service_checks   checks of PostgreSQL and of the services
    log_checks, group_checks, schedule_checks                            checks of the broker's contents

Checks never change anything. Checks read only single records of the log, except the check `filters`.
"""
