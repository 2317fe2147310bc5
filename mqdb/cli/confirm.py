"""The question before what cannot be undone."""

import sys

import typer

from mqdb.errors import MqdbError, ResponseCode


class NotConfirmed(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A question that nobody is there to answer; `options` are what does without an answer."""

    question: str
    options: str
    sentence = "{question} Nobody is there to confirm it; add {options}"


def check_somebody_is_there(question: str, options: str = "--yes") -> None:
    """Raises NotConfirmed where no terminal is."""
    if not sys.stdin.isatty():
        raise NotConfirmed(question, options)


def confirm(question: str, options: str = "--yes") -> None:
    """Return when the answer is yes. Raises typer.Abort for a no, and NotConfirmed where no terminal is."""
    check_somebody_is_there(question, options)
    typer.confirm(question, abort=True)
