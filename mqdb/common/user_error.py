"""Errors of user code, read without trusting them.

A listener, a hook or a callback may raise any object whose class derives from BaseException. Its `str` may fail, its
attributes may be properties that fail, and its chain of causes may be a cycle or have a million links. mqdb describes,
traverses and logs such an error only with the functions of this module, which raise nothing. These functions read the
slots of BaseException and `type`, which no class can override. Only two operations, both guarded, run code of the
error: its `str`, and Python's functions that write tracebacks. If that code never returns, the listener has not
returned.
"""

import logging
from collections import deque
from collections.abc import Mapping
from traceback import TracebackException, format_tb
from typing import Any, Final, NamedTuple

#: Limits of a description. An error that exceeds one is described without its causes and its notes.
MAX_LINKED_ERRORS: Final = 200
MAX_NOTES: Final = 100
#: The maximum length of a message or traceback. A longer traceback keeps its end, which shows what was raised, and
#: where.
MAX_CHARACTERS: Final = 65_536
#: The maximum length of a message in a traceback that Python cannot write.
_MOST_IN_OWN: Final = 4_096
#: The maximum number of frames in a traceback: those nearest to the raise.
MAX_FRAMES: Final = 100

_CAUSE: Final = BaseException.__dict__["__cause__"]
_CONTEXT: Final = BaseException.__dict__["__context__"]
_TRACEBACK: Final = BaseException.__dict__["__traceback__"]
_ATTRIBUTES: Final = BaseException.__dict__["__dict__"]
_MEMBERS: Final = BaseExceptionGroup.__dict__["exceptions"]
_QUALNAME: Final = type.__dict__["__qualname__"]
_MODULE: Final = type.__dict__["__module__"]
_BASES: Final = type.__dict__["__mro__"]


class ErrorText(NamedTuple):
    """An error described in plain `str` values."""

    #: The qualified name of its class, without `builtins`.
    exception: str
    message: str
    traceback: str
    #: Whether Python's own functions for tracebacks can show the error, in bounded time and size.
    is_usual: bool


def describe(error: BaseException) -> ErrorText:
    """Describe an error. Each text has at most MAX_CHARACTERS."""
    name, message = class_name(type(error)), _message(error)
    usual = _usual_traceback(error) if len(message) < MAX_CHARACTERS and _is_bounded(error) else None
    return ErrorText(name, message, _own_traceback(error, name, message) if usual is None else usual, usual is not None)


def reason_of(error: BaseException) -> str:
    """The class and message of an error, for a field of a log record."""
    message = _message(error)
    return f"{class_name(type(error))}: {message}" if message else class_name(type(error))


def log_error(
    logger: logging.Logger,
    sentence: str,
    error: BaseException,
    fields: Mapping[str, object],
    level: int = logging.ERROR,
) -> None:
    """Log an error with its traceback. The record contains the error itself, unless handlers would fail to show it.

    `sentence` refers to fields, as in `"%(group)s"`; the record contains all fields.
    """
    text = describe(error)
    # The record shows the location of the caller, not of this function.
    if text.is_usual:
        exc_info = type(error), error, _TRACEBACK.__get__(error)
        logger.log(level, sentence, fields, exc_info=exc_info, extra=fields, stacklevel=2)
    else:
        with_traceback = f"{sentence}\n%(traceback)s"
        values = {**fields, "traceback": text.traceback.rstrip("\n")}
        logger.log(level, with_traceback, values, extra=fields, stacklevel=2)


def chain_of(error: BaseException) -> list[BaseException]:
    """An error, its causes and contexts, and the members of groups; each once, nearest first.

    At most MAX_LINKED_ERRORS, and one more if there are more.
    """
    chain: list[BaseException] = []
    seen: set[int] = set()
    waiting = deque([error])
    while waiting and len(chain) <= MAX_LINKED_ERRORS:
        each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        chain.append(each)
        waiting.extend(linked for slot in (_CAUSE, _CONTEXT) if (linked := slot.__get__(each)) is not None)
        if issubclass(type(each), BaseExceptionGroup):
            waiting.extend(_MEMBERS.__get__(each)[: MAX_LINKED_ERRORS + 1])
    return chain


def for_future(error: BaseException) -> BaseException:
    """The error, or a RuntimeError for a StopIteration, which asyncio futures do not accept. Source: PEP 479."""
    if not issubclass(type(error), StopIteration):
        return error
    replaced = RuntimeError(f"raised {reason_of(error)}")
    replaced.__cause__ = error
    return replaced


def attribute_of(given: object, name: str) -> Any:
    """An attribute of an error or a hook; None if it is missing or cannot be read."""
    try:
        return getattr(given, name, None)
    except BaseException:  # noqa: BLE001 - a user-defined property may raise anything
        return None


def class_name(cls: type) -> str:
    """The qualified name of a class, without `builtins`."""
    module = _MODULE.__get__(cls)
    name = _plain(_QUALNAME.__get__(cls), MAX_CHARACTERS)
    if not isinstance(module, str) or module == "builtins":
        return name
    return f"{_plain(module, MAX_CHARACTERS)}.{name}"


def _message(error: BaseException) -> str:
    try:
        return _plain(str(error), MAX_CHARACTERS)
    except BaseException:  # noqa: BLE001 - also SystemExit: the listener has not called sys.exit() itself
        return "<exception str() failed>"  # as in Python's tracebacks


def _is_bounded(error: BaseException) -> bool:
    """Whether the chain of an error has few errors and notes."""
    chain = chain_of(error)
    return len(chain) <= MAX_LINKED_ERRORS and all(map(_has_few_notes, chain))


def _has_few_notes(error: BaseException) -> bool:
    if any("__notes__" in vars(base) for base in _BASES.__get__(type(error))):
        return False
    notes = _ATTRIBUTES.__get__(error).get("__notes__")
    return notes is None or (type(notes) in (list, tuple) and len(notes) <= MAX_NOTES)


def _usual_traceback(error: BaseException) -> str | None:
    """The traceback that Python prints for an error; None if that fails."""
    try:
        lines = TracebackException.from_exception(error, limit=-MAX_FRAMES).format()
        return "".join(lines)[-MAX_CHARACTERS:]
    except BaseException:  # noqa: BLE001 - it reads attributes of the error, which may be user code
        return None


def _own_traceback(error: BaseException, name: str, message: str) -> str:
    try:
        frames = "".join(format_tb(_TRACEBACK.__get__(error), limit=-MAX_FRAMES))
    except BaseException:  # noqa: BLE001 - the source of a frame may come from a user-defined loader
        frames = ""
    return f"Traceback (most recent call last):\n{frames[-MAX_CHARACTERS // 2 :]}{name}: {message[:_MOST_IN_OWN]}\n"


def _plain(text: str, most: int) -> str:
    """The beginning of a string as a plain `str`, because a subclass may override every operation."""
    return str.__getitem__(text, slice(0, most))
