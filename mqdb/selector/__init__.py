"""Selectors: a subscriber's choice of messages of a topic.

Everything in this package is pure: a text becomes a value that can judge a message, or a clause with which PostgreSQL
judges messages. `mqdb.broker` uses such values to narrow its search in the database.

    subscription, tags        the common part of all filters; tag expressions
    selector                  SQL92, compiled; the steps:
    syntax, parser, check     text to tree, and the refusals of RocketMQ
    operands, comparison, verdict, clause, flat   tree to a clause of four-valued verdicts
    warnings, written         surprises in an expression; the tree for people
"""

from mqdb.selector.selector import Selector, compile_selector

__all__ = ["compile_selector", "Selector"]
