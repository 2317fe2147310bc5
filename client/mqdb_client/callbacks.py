"""Callbacks: functions that the client calls when news from the broker arrives."""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
Callback: TypeAlias = Callable[[T], None]


class CallbackHandle:
    """Ends a callback. A call that has already started in another thread may still be running afterwards."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


class Callbacks(Generic[T]):
    """Callbacks of one kind, called one after the other, even if one of them raises."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._callbacks: tuple[Callback[T], ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if there is no callback."""
        return not self._callbacks

    def add(self, callback: Callback[T]) -> CallbackHandle:
        """Add a callback, which is called from now on."""
        # A function that is added twice is called twice.
        own: Callback[T] = lambda value: callback(value)  # noqa: E731
        with self._guard:
            self._callbacks += (own,)
        return CallbackHandle(lambda: self._remove(own))

    def _remove(self, own: Callback[T]) -> None:
        with self._guard:
            self._callbacks = tuple(each for each in self._callbacks if each is not own)

    def call(self, value: T) -> None:
        """Call all callbacks."""
        for callback in self._callbacks:
            try:
                callback(value)
            except Exception:
                fields = {"kind": self._name}
                logger.exception("callback for %(kind)s failed", fields, extra=fields)
