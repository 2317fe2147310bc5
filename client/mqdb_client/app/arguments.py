"""Arguments: the values passed to a listener of an application, determined by the annotations of its parameters.

ReceivedMessage, or none      the message
Message                       the message ready to be sent again, without the broker's additions
Connection, Session,          the transaction of exactly_once
AsyncConnection, AsyncSession
anything else                 its body (`bodies.py`): bytes, str, a dataclass, a pydantic model, dict[str, int]
"""

import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from mqdb.common.message import Message
from mqdb.common.property import RESERVED_PROPERTIES
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import reason_of
from mqdb.errors import ParameterInvalid
from mqdb_client.app.bodies import BodyReader
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyContext, ConsumeOrderlyContext

_Source: TypeAlias = Callable[[ReceivedMessage], Any]

#: The types by which a listener requests its transaction, and whether they belong to asyncio. They are given by name,
#: because SQLAlchemy's asyncio part need not be installed.
_TRANSACTIONS: Final = {"Connection": False, "Session": False, "AsyncConnection": True, "AsyncSession": True}

_KINDS: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


#: A function that returns one of these has not run yet. (An asynchronous generator cannot be closed here.)
_NOT_RUN: Final = (Coroutine, Generator)

#: Only listeners of consumers get a context. Contexts are dataclasses, so pydantic would read them from the body.
_CONTEXTS: Final = (ConsumeConcurrentlyContext, ConsumeOrderlyContext)


class _Parameter(NamedTuple):
    name: str
    source: _Source | None
    """Computes the argument from the message; None if the argument is the transaction."""
    session: Callable[..., Any] | None = None
    """The class of the session to make for the transaction; None if the argument is the connection itself."""
    body: BodyReader | None = None
    """Reads the body; None if the argument is not the body."""


class Arguments:
    """The arguments with which a listener function is called for each message."""

    def __init__(self, function: Callable[..., Any], *, exactly_once: bool) -> None:
        """Raises ParameterInvalid, with the reason, for a function that cannot be called with a message."""
        self._function = function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ParameterInvalid("listener", function, "is a generator, of which a call runs nothing")
        try:
            hints = get_type_hints(_annotated(function), include_extras=True)
            parameters = inspect.signature(function).parameters.values()
        except Exception as error:  # an annotation given as a string is user code, and may raise anything
            reason = f"its parameters or their annotations cannot be read: {reason_of(error)}"
            raise ParameterInvalid("listener", function, reason) from error
        given = function.keywords if isinstance(function, partial) else {}
        self._positional: list[_Parameter] = []
        self._named: list[_Parameter] = []
        for parameter in parameters:
            if parameter.kind not in _KINDS or parameter.name in given:
                continue
            is_first = not self._positional and not self._named
            if parameter.default is not parameter.empty and (parameter.name not in hints or not is_first):
                continue
            made = _parameter_of(function, parameter.name, hints.get(parameter.name))
            (self._named if parameter.kind is parameter.KEYWORD_ONLY else self._positional).append(made)
        if not (self._positional or self._named) and any(each.kind is each.VAR_POSITIONAL for each in parameters):
            reason = "takes *args, which do not say what it is called with; give its decorator functools.wraps"
            raise ParameterInvalid("listener", function, reason)
        wants = any(each.source is None for each in (*self._positional, *self._named))
        if wants and not exactly_once:
            raise ParameterInvalid("listener", function, "takes a transaction; say exactly_once=True")

    def complete(self) -> None:
        """Resolve all types in the body types after the modules are loaded: a dataclass may name a class defined later.

        Raises ParameterInvalid.
        """
        for parameter in (*self._positional, *self._named):
            if parameter.body is not None:
                try:
                    parameter.body.complete()
                except Exception as error:  # it runs user code: metaclasses, validators, annotations
                    raise _unreadable(self._function, parameter.name, error) from error

    def call(self, message: ReceivedMessage, transaction: Any = None) -> None:
        """Call the function with a message. Raises BodyUnreadable, and the errors of the function.

        Raises ParameterInvalid if the function returns a generator or, like a wrapper of a coroutine function, a
        coroutine.
        """
        with ExitStack() as stack:
            positional, named, sessions = self._values(message, transaction)
            for session in sessions:
                stack.enter_context(session)
            returned = self._function(*positional, **named)
            if isinstance(returned, _NOT_RUN):
                returned.close()
                reason = f"returns a {type(returned).__name__}, which is never run; write async def"
                raise ParameterInvalid("listener", self._function, reason)
            for session in sessions:
                session.flush()

    async def call_in_loop(self, message: ReceivedMessage, transaction: Any = None) -> None:
        """Call a coroutine function with a message."""
        async with AsyncExitStack() as stack:
            positional, named, sessions = self._values(message, transaction)
            for session in sessions:
                await stack.enter_async_context(session)
            await self._function(*positional, **named)
            for session in sessions:
                await session.flush()

    def _values(self, message: ReceivedMessage, transaction: Any) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """The positional arguments, the named arguments, and the sessions among both."""
        sessions = []

        def value(parameter: _Parameter) -> Any:
            if parameter.source is not None:
                return parameter.source(message)
            if parameter.session is None:
                return transaction
            sessions.append(session := parameter.session(bind=transaction))
            return session

        return [value(each) for each in self._positional], {each.name: value(each) for each in self._named}, sessions


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether a callable is a coroutine function, or an object whose `__call__` is a coroutine function."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The object with the annotations of a callable: the function in a partial, the `__call__` of an object."""
    if isinstance(function, partial):
        return _annotated(function.func)
    if inspect.isroutine(function):
        return function
    if isinstance(function, type):
        return function.__init__  # type: ignore[misc, no-any-return]  # this class only: its annotations are read
    called: Callable[..., Any] = type(function).__call__
    return called


def _parameter_of(function: Callable[..., Any], name: str, annotation: Any) -> _Parameter:
    wanted = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if wanted is None or wanted is ReceivedMessage:
        return _Parameter(name, lambda message: message)
    if wanted is Message:
        return _Parameter(name, _sendable)
    if (kind := _kind_of_transaction(wanted)) is not None:
        if _TRANSACTIONS[kind] is not is_asynchronous(function):
            right = "Connection or Session" if _TRANSACTIONS[kind] else "AsyncConnection or AsyncSession"
            raise ParameterInvalid("listener", function, f"{name!r} is {kind}; give it {right}")
        return _Parameter(name, None, wanted if kind.endswith("Session") else None)
    if wanted in _CONTEXTS:
        reason = (
            f"{name!r} is a context, which only a listener of a consumer gets; retries, backoff and so on are options"
        )
        raise ParameterInvalid("listener", function, reason)
    shown = wanted.__name__ if isinstance(wanted, type) else inspect.formatannotation(wanted)
    try:
        body = BodyReader(annotation, shown)
    except Exception as error:  # annotations of a class are user code, too, and are read only here
        raise _unreadable(function, name, error) from error
    return _Parameter(name, body.read, body=body)


def _unreadable(function: Callable[..., Any], name: str, error: Exception) -> ParameterInvalid:
    reason = f"{name!r} is of a type that JSON cannot give: {reason_of(error)}"
    return ParameterInvalid("listener", function, reason)


def _kind_of_transaction(wanted: Any) -> str | None:
    for base in wanted.__mro__ if isinstance(wanted, type) else ():
        if base.__module__.startswith("sqlalchemy.") and base.__name__ in _TRANSACTIONS:
            return str(base.__name__)
    return None


def _sendable(message: ReceivedMessage) -> Message:
    own = {name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES}
    return Message(message.topic, message.body, message.tag, message.keys, own, message.flag)
