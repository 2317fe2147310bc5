"""Agents: the background work of a broker. `mqdb.server` runs them in the process that leads.

    dispatcher           assigns queue offsets to new messages
    key_indexer          makes messages findable by key
    segment_keeper       creates, closes, seals and drops segments
    client_reaper        removes dead clients from their groups
    delay_deliverer      delivers delayed messages and retries when their time has come
    timer_deliverer      delivers messages with a time of delivery; deliverer: the common part of both
    timer_keeper         removes delivered timers
    transaction_checker  asks producers about half messages whose outcome they have not reported
    cron_sender          sends recurring messages at their times
    leadership           elects the one process that runs the others

All have the same structure, which `service` defines. The other modules:

    cron_text, cron_times   the meaning of a cron text
    retention               the segments to drop
    run, pace               one run of a service, and its pauses; silence_watch: services with a silent server
"""
