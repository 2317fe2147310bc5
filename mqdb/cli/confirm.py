"""The question before what cannot be undone."""

import sys

import typer

from mqdb.errors import MqdbError, ResponseCode


class NotConfirmed(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A question needs an answer, and there is no terminal. `options` are the options that need no answer."""

    question: str
    options: str
    sentence = "{question} No terminal to confirm it; add {options}"


def check_somebody_is_there(question: str, options: str = "--yes") -> None:
    """Raise NotConfirmed if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise NotConfirmed(question, options)


def confirm(question: str, options: str = "--yes") -> None:
    """Return when the answer is yes. Raises typer.Abort for a no, and NotConfirmed without a terminal."""
    check_somebody_is_there(question, options)
    typer.confirm(question, abort=True)
