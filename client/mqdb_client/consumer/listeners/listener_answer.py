"""Listener answer: checks by a function's code whether it can return an answer.

Returning None requests redelivery, so a listener without a `return` would fail each message until it becomes a dead
letter. Such a function is refused at registration.
"""

import dis
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

from mqdb.errors import ParameterInvalid

_GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def require_answer(listener: Callable[..., Any], success: str) -> None:
    """Raise ParameterInvalid for a function that can only return None; `success` is the return value to suggest.

    Lambdas, bound methods, partials and other callables are accepted, and so are functions that never return.
    """
    if not isinstance(listener, FunctionType) or listener.__name__ == "<lambda>":
        return
    if listener.__code__.co_flags & _GENERATORS:
        raise ParameterInvalid("listener", listener, f"is a generator; write a plain function, and return {success}")
    if _only_returns_none(listener.__code__) and not _is_said_not_to_return(listener):
        reason = f"never returns a status, and None causes redelivery; end it with: return {success}"
        raise ParameterInvalid("listener", listener, reason)


def _only_returns_none(code: CodeType) -> bool:
    """Whether the code has return instructions, and all of them return the constant None.

    Unreachable code is not compiled.
    """
    returns = []
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST":  # in 3.12 and 3.13
            returns.append(instruction.argval)
        elif instruction.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            # After a jump the value may differ: `return status or None`.
            returns.append(None if is_none and not instruction.is_jump_target else "a value")
        before = instruction
    return bool(returns) and all(each is None for each in returns)


def _is_said_not_to_return(listener: FunctionType) -> bool:
    try:
        said = listener.__annotations__.get("return")
    except Exception:  # noqa: BLE001 - since 3.14 annotations are code, which runs now
        return False
    return getattr(said, "__name__", said) in ("NoReturn", "Never", "typing.NoReturn", "typing.Never")
