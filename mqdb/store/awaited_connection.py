"""Awaited connection: psycopg's AsyncConnection for code that is written for its Connection.

Such code runs below SQLAlchemy's `greenlet_spawn`, in the loop of the connection. While it waits, the loop goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy.engine import AdaptedConnection


class AwaitedConnection:
    """What mqdb calls of a Connection while a listener has it. All that does not wait is the AsyncConnection's own."""

    def __init__(self, adapted: AdaptedConnection) -> None:
        """`adapted` is what SQLAlchemy has for the DBAPI's connection."""
        self._adapted = adapted
        self._below: psycopg.AsyncConnection[Any] = adapted.driver_connection

    def execute(self, query: Any, parameters: Any = None, *, prepare: bool | None = None) -> None:
        """As `psycopg.Connection.execute`, without the cursor."""
        self._adapted.run_async(lambda _: self._below.execute(query, parameters, prepare=prepare))

    def commit(self) -> None:
        """As that of a Connection."""
        self._adapted.run_async(lambda _: self._below.commit())

    def rollback(self) -> None:
        """As that of a Connection."""
        self._adapted.run_async(lambda _: self._below.rollback())

    def close(self) -> None:
        """As that of a Connection."""
        self._adapted.run_async(lambda _: self._below.close())

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """As that of a Connection."""
        pipeline = self._below.pipeline()
        self._adapted.run_async(lambda _: pipeline.__aenter__())
        try:
            yield
        except BaseException as error:
            caught = error  # the name of an except clause is gone after it
            self._adapted.run_async(lambda _: pipeline.__aexit__(type(caught), caught, caught.__traceback__))
            raise
        self._adapted.run_async(lambda _: pipeline.__aexit__(None, None, None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)
