"""Selectors: which messages of a topic a subscriber wants.

Everything in this package is pure: text becomes a value that can judge a message. How the
database narrows its search with such a value is the business of `mqdb.broker`.
"""
