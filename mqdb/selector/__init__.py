"""Selectors: which messages of a topic a subscriber wants.

Everything in this package is pure: text becomes a value that can judge a message, or a clause that lets PostgreSQL
judge it. How the database narrows its search with such a value is the business of `mqdb.broker`.
"""

from mqdb.selector.selector import Selector, compile_selector

__all__ = ["compile_selector", "Selector"]
