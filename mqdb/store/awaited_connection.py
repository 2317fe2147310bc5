"""Awaited connection: lets code written for psycopg's Connection use an AsyncConnection.

Such code runs inside SQLAlchemy's `greenlet_spawn`, in the connection's event loop, which keeps running while the code
waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy.engine import AdaptedConnection


class AwaitedConnection:
    """Stands in for a Connection in mqdb's code while a listener runs.

    Non-blocking methods are those of the AsyncConnection.
    """

    def __init__(self, adapted: AdaptedConnection) -> None:
        """`adapted` is SQLAlchemy's wrapper of the DBAPI connection."""
        self._adapted = adapted
        self._below: psycopg.AsyncConnection[Any] = adapted.driver_connection

    def execute(self, query: Any, parameters: Any = None, *, prepare: bool | None = None) -> None:
        """Execute a query as `psycopg.Connection.execute` does, but return no cursor."""
        self._adapted.run_async(lambda _: self._below.execute(query, parameters, prepare=prepare))

    def commit(self) -> None:
        """Commit, as `psycopg.Connection.commit` does."""
        self._adapted.run_async(lambda _: self._below.commit())

    def rollback(self) -> None:
        """Roll back, as `psycopg.Connection.rollback` does."""
        self._adapted.run_async(lambda _: self._below.rollback())

    def close(self) -> None:
        """Close, as `psycopg.Connection.close` does."""
        self._adapted.run_async(lambda _: self._below.close())

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Begin a pipeline, as `psycopg.Connection.pipeline` does."""
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
