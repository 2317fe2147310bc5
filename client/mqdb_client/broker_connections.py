"""The connections of a client instance to its broker, and the check that each leads to the right database."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine

from mqdb.broker.log.query import broker_info
from mqdb.common.dsn import BrokerDsn
from mqdb.errors import IllegalState
from mqdb.store.engine import create_engine, driver, target_of, translated
from mqdb.store.log.history import History
from mqdb.store.server_choice import ServerRole
from mqdb.store.session_settings import COMMIT_LOCALLY
from mqdb.store.silence import in_time
from mqdb_client.connection_watch import ConnectionWatch, hold
from mqdb_client.new_connection import history_on, note_history
from mqdb_client.outage import Outage

logger = logging.getLogger(__name__)


class BrokerConnections:
    """The connections of one client. Thread-safe between `open` and `close`.

    `on_replaced` is called if another database is found behind the address, and `on_answer` after each new connection.
    """

    def __init__(
        self,
        broker: BrokerDsn,
        pool_dsn: str | None,
        client_id: str,
        *,
        on_replaced: Callable[[], None],
        on_answer: Callable[[], None],
    ) -> None:
        self._broker_name = broker.name
        self._client_id = client_id
        self._on_replaced = on_replaced
        self._on_answer = on_answer
        self.pool_dsn: Final = pool_dsn
        #: The DSN for separate engines: that of the pooler, if there is one.
        self.dsn: Final = pool_dsn or broker.dsn
        self.server: Final = ServerRole.PRIMARY if pool_dsn is None else ServerRole.ANY
        # No limit here: each thread that uses the broker needs a connection.
        self._engine: Final[Engine] = create_engine(
            self.dsn,
            prepared=pool_dsn is None,
            indexes_only=True,
            pool_size=0,
            server=self.server,
            application_name=f"mqdb {client_id}",
        )
        #: Makes the listening connection, which bypasses a pooler.
        self.listener: Final = create_engine(broker.dsn, pool_size=1, application_name=f"mqdb {client_id} listener")
        self.target: Final = target_of(self._engine)
        self.outage: Final = Outage(self.target)
        self.watch: Final = ConnectionWatch(self._connect_anew, lambda: self._may_connect, self.outage.foretell)
        self.watch.cover(self._engine, is_direct=pool_dsn is None)
        self.watch.cover(self.listener)
        self._may_connect = False
        #: Whether the broker has been reached and is the expected one.
        self.is_met = False
        #: The properties of the last checked connection; None and "" before the first one.
        self.history: History | None = None
        self.namespace: str | None = None
        self.cluster_name = ""

    def open(self) -> None:
        """Allow connections."""
        self._may_connect = True

    def close(self) -> None:
        """Refuse new connections, and close unused connections."""
        self._may_connect = self.is_met = False
        self._engine.dispose()

    def connect(self) -> Connection:
        """A connection from the pool, in AUTOCOMMIT mode, for a `with` statement.

        Raises BrokerUnavailable and its subclasses.
        """
        if not self._may_connect:
            raise IllegalState(f"client {self._client_id}", "closed")
        with translated(self.target):
            connection = self._engine.connect()
        # Once behind a pooler or after a start without the broker, otherwise on each new connection: the address may
        # lead to another database by now.
        if not self.is_met or (self.pool_dsn is None and history_on(connection) is None):
            try:
                with translated(self.target), in_time(connection):
                    self.check(connection)
            except BaseException:
                connection.close()
                raise
            self.is_met = True
            self._on_answer()
        return connection

    def connect_to_hold(self) -> Connection:
        """A connection to keep between statements. See `hold`.

        The user of the connection either marks each wait for an answer in the connection's `Line`, or limits each wait
        itself.
        """
        connection = self.connect()
        hold(connection)
        return connection

    def check(self, connection: Connection) -> None:
        """Check that a connection leads to the expected broker, and note whether the database is the same as before.

        Raises BrokerMisnamed, and a SchemaMismatch if the schema does not fit this version of mqdb.
        """
        info = broker_info(connection)
        self.namespace = info.namespace
        before, self.history = self.history, info.history
        if before not in (None, info.history):
            logger.debug("the server was restarted or replaced", extra={"broker": self.target})
            self.watch.replaced(info.history)
            self._on_replaced()
        info.require_name(self._broker_name, self.target)
        self.cluster_name = info.cluster_name
        if self.pool_dsn is None:
            note_history(connection, info.history)
            driver(connection).execute(COMMIT_LOCALLY)

    @contextmanager
    def _connect_anew(self) -> Iterator[Connection]:
        """A connection outside the pool, to check whether the server answers."""
        name = f"mqdb {self._client_id} question"
        is_direct = self.pool_dsn is None
        engine = create_engine(self.dsn, prepared=is_direct, pool_size=1, application_name=name, server=self.server)
        try:
            with translated(self.target), engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()
