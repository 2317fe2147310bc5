"""Nouns: one module per table, with its statements and invariants. `tables` is the schema on one page.

tables                 the schema on one page; migrations: its versions
engine, prepared       connections to PostgreSQL; statements that run per message; awaited_connection: in an event loop
server_choice          the choice of the server; server_state, replication: its state
silence, session_settings   servers that do not answer; the settings of each session
fragments, locks       parts of many statements; all locks
log, segments          records and their index; ranges of the log
dispatch               the progress of services, and consume queues
topics, consumers, clients, filters, schedule, transactions   by subject, as in `mqdb.broker`
dead_letters, operations, acl, leader, broker_settings        one module each
movable_clock          the broker's clock, for tests
"""
