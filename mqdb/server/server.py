"""The broker process: a PostgreSQL server, its upgraded schema, and the services if this process is the leader.

    Server
     ├── SharedPostgres      if no DSN is given: owned, or another process's and taken over when that is gone
     ├── Leadership          one of all processes on the database leads
     ├── services            run while this one does
     └── WebServer           if MQDB_HTTP is set: metrics, health, and pages that are handed to this

When the database goes away and comes back, leadership is lost and won again, so the services stop and start with it; no
other part has to handle this. A new database is migrated first, as at the start.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine

from mqdb.broker.broker_settings import change_settings
from mqdb.broker.dispatch import mend_state
from mqdb.broker.log.query import BrokerInfo, broker_info
from mqdb.common.dsn import BrokerDsn, redact
from mqdb.common.http_address import HttpAddress
from mqdb.embedded import Home, SharedPostgres, attach, mark_starting, open_or_attach
from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    MqdbError,
    SchemaMissing,
    SchemaTooOld,
    ServerIsStandby,
    SettingInvalid,
)
from mqdb.server.service_configs import broker_settings, checker_config, keeper_config
from mqdb.service.client_reaper import ClientReaper
from mqdb.service.cron_sender import CronSender
from mqdb.service.delay_deliverer import DelayDeliverer
from mqdb.service.dispatcher import Dispatcher
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.leadership import Leadership
from mqdb.service.segment_keeper import SegmentKeeper
from mqdb.service.service import Context, Service, create_scheduler
from mqdb.service.silence_watch import SilenceWatch
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.service.timer_keeper import TimerKeeper
from mqdb.service.transaction_checker import TransactionChecker
from mqdb.settings import Settings
from mqdb.store import migrations, server_choice
from mqdb.store.acl import is_guest
from mqdb.store.engine import connected, create_engine, translated
from mqdb.web.health import Health
from mqdb.web.histories import Histories
from mqdb.web.loop_rounds import Rounds

if TYPE_CHECKING:
    from mqdb.web.application import Metrics, Pages
    from mqdb.web.live_figures import LiveFigures
    from mqdb.web.web_server import WebServer

logger = logging.getLogger(__name__)


class WebParts(NamedTuple):
    """Additional parts of the web server, besides the metrics of the broker and its health."""

    pages: "Pages | None" = None
    #: Receives each sample, for the pages.
    figures: "LiveFigures | None" = None
    #: Each function creates metrics for the names of the broker and its cluster. These metrics are exported whether or
    #: not this process leads.
    metrics_of: "Sequence[Callable[[str, str], Metrics]]" = ()


class Server:
    """One broker in this process, from `start` to `stop`."""

    def __init__(self, settings: Settings, *, outlives_owner: bool = False, web: WebParts | None = None) -> None:
        """The constructor does not access anything yet.

        With `outlives_owner`, an embedded PostgreSQL keeps running if this process is killed, for clients and the next
        owner.
        """
        self.settings: Final = settings
        self._outlives_owner = outlives_owner
        self._web_parts = web or WebParts()
        self._guard = threading.Lock()
        self._postgres: SharedPostgres | None = None
        self._engine: Engine | None = None
        self._engine_dsn = ""
        self._scheduler: BackgroundScheduler | None = None
        self._rounds = Rounds()
        self._histories = Histories()
        context = self._rounds.watch_leadership(Context(self._connect_to_lead))
        self._leadership = Leadership(context, on_elected=self._lead, on_lost=self._follow)
        self._services: list[Service[Any]] = []
        #: The state that probes report.
        self.health: Final = Health(self._rounds, self._leadership.is_leader)
        self._info: BrokerInfo | None = None
        #: Whether only a standby was found, so that this process waits for the primary.
        self.waits_for_primary = False
        self._web: WebServer | None = None

    # -- what it is ---------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """DSN of the database, with the password."""
        return self._broker().dsn

    @property
    def is_leader(self) -> bool:
        """Whether the services of the broker run in this process."""
        return self._leadership.is_leader()

    @property
    def owns_postgres(self) -> bool:
        """Whether this process owns the embedded PostgreSQL, which would then end with it."""
        return self._postgres is not None and self._postgres.is_owner

    @property
    def http_address(self) -> HttpAddress | None:
        """The address of the web server; None without a web server."""
        return None if self._web is None else self._web.address

    # -- what it does -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker, and return when the database is upgraded and accepts requests.

        The services follow shortly after.

        With the setting `wait_for_primary`, it also returns if the DSN leads to a standby. The rest follows when the
        DSN leads to the primary; errors are then logged, or raised by `has_found_primary`. Raises an EmbeddedError,
        BrokerUnavailable, BrokerMisnamed or SchemaMismatch, in which case nothing is left running. Also raises
        CannotListen for `http`, and SettingInvalid if the role in the DSN does not own the broker.
        """
        if self._scheduler is not None:
            raise IllegalState("the server", "started already")
        try:
            with self._marked():
                if self.settings.broker is None:
                    self._postgres = self._open_postgres()
                    self._postgres.watch()
                self._begin()
            self._scheduler = create_scheduler()
            self._scheduler.start()
            self._services = self._make_services(self._scheduler)
            SilenceWatch(lambda: [self._leadership, *self._services], self._connect_anew).start(self._scheduler)
            self.health.begin()
            if self.settings.http_address is not None:
                self._web = self._start_web(self.settings.http_address)
            self._leadership.start()
        except BaseException:
            self.stop()
            raise
        if not self.waits_for_primary:
            logger.info("serving", extra={"dsn": redact(self.dsn), "owns_postgres": self.owns_postgres})

    def stop(self) -> None:
        """Stop the services, and then the database if this process owns it. It has no effect if nothing is running."""
        self.health.end()
        self._leadership.stop()
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.shutdown(wait=False)
        with self._guard:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
        web, self._web = self._web, None
        if web is not None:
            web.stop()
        postgres, self._postgres = self._postgres, None
        if postgres is not None:
            postgres.close()

    def has_found_primary(self) -> bool:
        """Whether the wait for the primary is over. Raises an error of leadership that is not temporary."""
        error = self._rounds.leadership.error
        may_pass = isinstance(error, BrokerUnavailable) and error.may_pass
        if isinstance(error, MqdbError) and not may_pass:
            raise error
        return not self.waits_for_primary

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- how it does it -----------------------------------------------------------------------

    def _marked(self) -> AbstractContextManager[None]:
        """Mark the start, so that clients wait for it.

        The start is not marked if a PostgreSQL server already answers: that of another process, or of a killed one.
        """
        home = self.settings.home
        if self.settings.broker is not None or attach(home) is not None:
            return nullcontext()
        return mark_starting(Home(home))

    def _begin(self) -> None:
        """Upgrade the database, or wait if the setting says so and the DSN leads to a standby."""
        try:
            self._bring_to_head()
        except ServerIsStandby as error:
            if not self.settings.wait_for_primary:
                raise
            self.waits_for_primary = True
            fields = {"reason": str(error)}
            logger.warning("waiting for the primary: %(reason)s", fields, extra=fields)
            # Only used for the names in metrics.
            with suppress(MqdbError), connected(self.dsn, "mqdb serve", server_choice.ServerRole.ANY) as connection:
                self._info = broker_info(connection)

    def _open_postgres(self) -> SharedPostgres:
        wanted = self.settings.port
        postgres = open_or_attach(self.settings.home, port=wanted, outlives_owner=self._outlives_owner)
        if wanted not in (0, postgres.port):
            fields = {"port": postgres.port, "wanted_port": wanted}
            sentence = "PostgreSQL of this home already runs on port %(port)s, not on port %(wanted_port)s"
            logger.warning(sentence, fields, extra=fields)
        return postgres

    def _broker(self) -> BrokerDsn:
        broker = self.settings.broker
        if broker is not None:
            return broker
        if self._postgres is None:
            raise IllegalState("the server", "not started")
        return BrokerDsn(self.settings.broker_name, self._postgres.dsn)

    def _connect(self) -> Connection:
        """A connection to the current database: an embedded one may come back on another port."""
        dsn = self._broker().dsn
        with self._guard:
            if self._engine is None or self._engine_dsn != dsn:
                if self._engine is not None:
                    self._engine.dispose()
                self._engine = create_engine(dsn, application_name="mqdb serve", pool_size=0)
                self._engine_dsn = dsn
            engine = self._engine
        with translated(redact(dsn)):
            return engine.connect()

    @contextmanager
    def _connect_anew(self) -> Iterator[Connection]:
        """A connection for a single question, not taken from a pool."""
        with self._connect() as connection:
            try:
                yield connection
            finally:
                connection.invalidate()

    def _connect_to_lead(self) -> Connection:
        """A connection for leadership, which requests one at the start and after each failure.

        By then, the database may be a different one: dropped and recreated, or restored.
        """
        self._bring_to_head()
        return self._connect()

    def _bring_to_head(self) -> None:
        """Upgrade the schema to this version of mqdb, and store the broker's name and settings."""
        broker = self._broker()
        with self._connect() as connection, translated(redact(broker.dsn)):
            try:
                self._bring_to_head_on(connection, broker)
            finally:
                # In the pool, the connection would outlive the database.
                connection.invalidate()

    def _bring_to_head_on(self, connection: Connection, broker: BrokerDsn) -> None:
        try:
            migrations.check_schema(connection)
        except (SchemaMissing, SchemaTooOld) as error:
            if not self.settings.auto_migrate_enable and self.settings.broker is not None:
                raise
            if isinstance(error, SchemaMissing):
                migrations.upgrade(broker.dsn, broker_name=broker.name, cluster_name=self.settings.cluster_name)
            else:
                migrations.upgrade(broker.dsn)
            logger.info("migrated the schema to the newest version", extra={"revision": migrations.head()})
        self._info = found = broker_info(connection)
        self._histories.note(found.history)
        found.require_name(broker.name, redact(broker.dsn))
        if is_guest(connection):
            reason = "its role does not own the broker, so it could never lead"
            raise SettingInvalid("dsn", redact(broker.dsn), self.settings.origin("dsn"), reason)
        self.settings.check_cluster_name(found.cluster_name)
        if mend_state(connection):
            mended = {"broker": broker.name}
            sentence = "rebuilt the state of the dispatcher of %(broker)s, which an early failover had broken"
            logger.warning(sentence, mended, extra=mended)
        kept, given = broker_settings(self.settings), self.settings
        for change in change_settings(connection, kept, given.delay_levels, given.default_durability):
            changed = change._asdict()
            sentence = "changed setting %(setting)s of the broker from %(before)s to %(after)s"
            logger.warning(sentence, changed, extra=changed)
        self.waits_for_primary = False

    def _make_services(self, scheduler: BackgroundScheduler) -> list[Service[Any]]:
        of = self._context_of
        # Their work starts with dispatched records.
        followers = KeyIndexer(of(KeyIndexer)), DelayDeliverer(of(DelayDeliverer)), TimerDeliverer(of(TimerDeliverer))

        def wake_followers() -> None:
            for service in followers:
                service.wake()

        return [
            Dispatcher(of(Dispatcher), on_dispatched=wake_followers),
            *followers,
            SegmentKeeper(of(SegmentKeeper), scheduler, keeper_config(self.settings)),
            ClientReaper(of(ClientReaper), scheduler),
            TimerKeeper(of(TimerKeeper), scheduler),
            TransactionChecker(of(TransactionChecker), scheduler, checker_config(self.settings)),
            CronSender(of(CronSender)),
        ]

    def _context_of(self, kind: type[Service[Any]]) -> Context:
        context = Context(self._connect, may_act=self._leadership.is_leader, on_round=self._note_failure)
        return self._rounds.watch(kind.name, context)

    def _note_failure(self, outcome: object) -> None:
        """Wake leadership after a failed round of a service.

        A service notices a lost connection earlier than leadership, which checks once a second.
        """
        if isinstance(outcome, Exception):
            self._leadership.wake()

    def _start_web(self, address: HttpAddress) -> "WebServer":
        """Serve metrics and health, and take samples while this process leads."""
        # Imported here, so that only processes with a web server pay for loading these libraries.
        from mqdb.web.application import create_application
        from mqdb.web.collector import BrokerCollector
        from mqdb.web.proxies import Proxies
        from mqdb.web.sampler import Sampler, SamplerConfig
        from mqdb.web.web_server import serve_web

        config = SamplerConfig(per_queue=self.settings.metrics_topics)
        sampler = Sampler(self._context_of(Sampler), config, self._web_parts.figures)
        self._services.append(sampler)
        broker, info = self._broker(), self._info
        names = (info.broker_name, info.cluster_name) if info else (broker.name, self.settings.cluster_name)
        metrics: list[Metrics] = [
            BrokerCollector(
                *names,
                health=self.health,
                rounds=self._rounds,
                sampler=sampler,
                histories=self._histories,
                is_leader=self._leadership.is_leader,
            )
        ]
        metrics += [make(*names) for make in self._web_parts.metrics_of]
        application = create_application(
            self.health,
            *metrics,
            loopback_only=address.is_loopback,
            passwords=self.settings.web_passwords,
            proxies=Proxies.of(self.settings),
            pages=self._web_parts.pages,
        )
        return serve_web(self.settings, address, application)

    def _lead(self) -> None:
        self._rounds.services_start()
        for service in self._services:
            service.start()

    def _follow(self) -> None:
        self._rounds.services_stop()
        # Halt all of them first, so that none waits for the last round of another.
        for service in self._services:
            service.halt()
        for service in self._services:
            service.stop()
