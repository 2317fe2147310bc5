"""Awaited connection: psycopg's AsyncConnection for code written for its Connection.

Such code runs below SQLAlchemy's `greenlet_spawn`, in the loop of the connection. While it waits, the loop continues.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy.engine import AdaptedConnection


class AwaitedConnection:
    """A Connection for mqdb while a listener uses it. Non-blocking methods are those of the AsyncConnection."""

    def __init__(self, adapted: AdaptedConnection) -> None:
        """`adapted` is SQLAlchemy's wrapper of the DBAPI connection."""
        self._adapted = adapted
        self._below: psycopg.AsyncConnection[Any] = adapted.driver_connection

    def execute(self, query: Any, parameters: Any = None, *, prepare: bool | None = None) -> None:
        """Execute a query like `psycopg.Connection.execute`, but return no cursor."""
        self._adapted.run_async(lambda _: self._below.execute(query, parameters, prepare=prepare))

    def commit(self) -> None:
        """Commit like a Connection."""
        self._adapted.run_async(lambda _: self._below.commit())

    def rollback(self) -> None:
        """Roll back like a Connection."""
        self._adapted.run_async(lambda _: self._below.rollback())

    def close(self) -> None:
        """Close like a Connection."""
        self._adapted.run_async(lambda _: self._below.close())

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Begin a pipeline like a Connection."""
        pipeline = self._below.pipeline()
        self._adapted.run_async(lambda _: pipeline.__aenter__())
        try:
            yield
        except BaseException as error:
            caught = error  # the name in an except clause is deleted after it
            self._adapted.run_async(lambda _: pipeline.__aexit__(type(caught), caught, caught.__traceback__))
            raise
        self._adapted.run_async(lambda _: pipeline.__aexit__(None, None, None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)
