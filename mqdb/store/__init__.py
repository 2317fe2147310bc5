"""Nouns: one module per table, with its statements and invariants. `tables` is the schema on one page."""
