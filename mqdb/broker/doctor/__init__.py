"""Doctor: what is wrong with a broker, and what to do about it.

    examine      runs the checks one by one: `ALL_CHECKS` is the list
    finding      what a check says, and the thresholds above which it warns
    server, sessions, services, log, groups, schedule      the checks, by what they look at

Nothing here changes anything. No check reads more of the log than single records, but for `filters`.
"""
