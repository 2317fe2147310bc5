"""Selectors: which messages of a topic a subscriber wants.

Everything in this package is pure: text becomes a value that can judge a message, or a clause that lets PostgreSQL
judge it. How the database narrows its search with such a value is the business of `mqdb.broker`.

    subscription, tags        what all filters have in common; tag expressions
    selector                  SQL92, compiled; the steps:
    syntax, parser, check     text to tree, and what RocketMQ refuses
    operands, comparison, verdict, clause, flat   tree to a clause of four-valued verdicts
    warnings, written         what surprises; the tree for people
"""

from mqdb.selector.selector import Selector, compile_selector

__all__ = ["compile_selector", "Selector"]
