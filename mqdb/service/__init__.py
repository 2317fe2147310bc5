"""Agents: what a broker does by itself. `mqdb.server` runs them wherever the leader is.

    dispatcher           gives new messages their queue offsets
    key_indexer          makes them findable by key
    segment_keeper       makes, closes, seals and drops segments
    client_reaper        takes clients that are gone out of their groups
    delay_deliverer      brings delayed messages and retries when their time has come
    timer_deliverer      brings messages with a time of delivery; deliverer: what both share
    timer_keeper         takes away what timers have left behind
    transaction_checker  asks producers about half messages of which they say nothing
    cron_sender          sends recurring messages at their times
    leadership           elects the one process that runs the others

All have one shape, which `service` describes. Beside it:

    cron_text, cron_times   what a cron text means
    retention               which segments go
    run, pace               one run of a service, and how fast it turns; silence_watch: if its server says nothing
"""
