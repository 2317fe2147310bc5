"""Nouns: one module per table, with its statements and invariants. `tables` is the schema on one page.

tables                 the schema on one page; migrations: its versions
engine, prepared       the way to PostgreSQL; statements of each message; awaited_connection: in an event loop
server_choice          which server that is; server_state, replication: what it says of itself
silence, session_settings   servers that do not answer; what each session begins with
fragments, locks       parts of many statements; all locks
log, segments          records and their index; ranges of the log
dispatch               how far services are, and consume queues
topics, consumers, clients, filters, schedule, transactions   by subject, as in `mqdb.broker`
dead_letters, operations, acl, leader, broker_settings        one module each
movable_clock          the broker's clock, for tests
"""
