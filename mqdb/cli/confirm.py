"""Confirmation of actions that cannot be undone."""

import sys

import typer

from mqdb.errors import MqdbError, ResponseCode


class NotConfirmed(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A question needs an answer, but standard input is not a terminal.

    `options` are the options that answer the question in advance.
    """

    question: str
    options: str
    sentence = "{question} No terminal to confirm it; add {options}"


def check_somebody_is_there(question: str, options: str = "--yes") -> None:
    """Raise NotConfirmed if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise NotConfirmed(question, options)


def confirm(question: str, options: str = "--yes") -> None:
    """Return if the answer is yes. Raises typer.Abort if the answer is no, and NotConfirmed if there is no terminal."""
    check_somebody_is_there(question, options)
    typer.confirm(question, abort=True)
