"""The broker process: a PostgreSQL, its schema at head, and the services wherever this process is the leader.

    Server
     ├── SharedPostgres      where no DSN is given: owned, or another process's and taken over when that is gone
     ├── Leadership          one of all processes on the database leads
     ├── services            run while this one does
     └── WebServer           where MQDB_HTTP is set: metrics, health, and pages that are handed to this

When the database goes away and comes back, leadership is lost and won again, and with it the services stop and
start; nothing else has to know. One that was made anew is migrated before, as at the start.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine

from mqdb.broker.broker_settings import change_settings
from mqdb.broker.log.query import BrokerInfo, broker_info
from mqdb.common.dsn import BrokerDsn, redact
from mqdb.common.http_address import HttpAddress
from mqdb.embedded import Home, SharedPostgres, attach, mark_starting, open_or_attach
from mqdb.errors import IllegalState, SchemaMissing, SchemaTooOld, SettingInvalid
from mqdb.service.client_reaper import ClientReaper
from mqdb.service.cron_sender import CronSender
from mqdb.service.delay_deliverer import DelayDeliverer
from mqdb.service.dispatcher import Dispatcher
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.leadership import Leadership
from mqdb.service.segment_keeper import SegmentKeeper
from mqdb.service.service import Context, Service, create_scheduler
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.service.timer_keeper import TimerKeeper
from mqdb.service.transaction_checker import TransactionChecker
from mqdb.service_configs import broker_settings, checker_config, dispatcher_config, keeper_config
from mqdb.settings import Settings
from mqdb.signals import interruption
from mqdb.store import migrations
from mqdb.store.acl import is_guest
from mqdb.store.engine import create_engine, translated
from mqdb.systemd import SystemdSupervisor
from mqdb.web.health import Health
from mqdb.web.rounds import Rounds

if TYPE_CHECKING:
    from mqdb.web.application import Metrics, Pages
    from mqdb.web.lag_history import LagHistory
    from mqdb.web.report import Report
    from mqdb.web.web_server import WebServer

logger = logging.getLogger(__name__)


class Server:
    """One broker process. Start it, stop it, or let it `run` until somebody interrupts it."""

    def __init__(
        self,
        settings: Settings,
        *,
        outlives_owner: bool = False,
        pages: "Pages | None" = None,
        lag_history: "LagHistory | None" = None,
        more_metrics: "Callable[[str, str], Metrics] | None" = None,
    ) -> None:
        """Touches nothing yet.

        With `outlives_owner` an embedded PostgreSQL stays when this process is killed, for clients and the next owner.
        `pages` are served besides metrics and health, where HTTP is; there `lag_history` gets the lag of each group.
        `more_metrics` are made for the names of the broker and its cluster, and said whether this process leads or not.
        """
        self._settings = settings
        self._outlives_owner = outlives_owner
        self._pages = pages
        self._lag_history = lag_history
        self._more_metrics = more_metrics
        self._guard = threading.Lock()
        self._postgres: SharedPostgres | None = None
        self._engine: Engine | None = None
        self._engine_dsn = ""
        self._scheduler: BackgroundScheduler | None = None
        self._rounds = Rounds()
        context = self._rounds.watch_leadership(Context(self._connect_to_lead))
        self._leadership = Leadership(context, on_elected=self._lead, on_lost=self._follow)
        self._services: list[Service[Any]] = []
        self._health = Health(self._rounds, self._leadership.is_leader)
        self._info: BrokerInfo | None = None
        self._web: WebServer | None = None

    # -- what it is ---------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """Address of the database, with the password."""
        return self._broker().dsn

    @property
    def is_leader(self) -> bool:
        """Whether the services of the broker run in this process."""
        return self._leadership.is_leader()

    @property
    def owns_postgres(self) -> bool:
        """Whether the embedded PostgreSQL is this process's own, and would end with it."""
        return self._postgres is not None and self._postgres.is_owner

    @property
    def http_address(self) -> HttpAddress | None:
        """Where it answers HTTP; None where it does not."""
        return None if self._web is None else self._web.address

    # -- what it does -------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the database takes requests and is at head; the services follow in a moment.

        Raises an EmbeddedError, BrokerUnavailable, BrokerMisnamed or SchemaMismatch, and leaves nothing running then.
        So does CannotListen for `http`, and SettingInvalid if the role of the DSN does not own the broker.
        """
        if self._scheduler is not None:
            raise IllegalState("the server", "started already")
        try:
            with self._marked():
                if self._settings.broker is None:
                    self._postgres = self._open_postgres()
                    self._postgres.watch()
                self._bring_to_head()
            self._scheduler = create_scheduler()
            self._scheduler.start()
            self._services = self._make_services(self._scheduler)
            self._health.begin()
            if self._settings.http_address is not None:
                self._web = self._start_web(self._settings.http_address)
            self._leadership.start()
        except BaseException:
            self.stop()
            raise
        logger.info("serving", extra={"dsn": redact(self.dsn), "owns_postgres": self.owns_postgres})

    def stop(self) -> None:
        """Services first, then the database if it is this process's own. Without effect where nothing runs."""
        self._health.end()
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

    def run(self, beside: "Callable[[], AbstractContextManager[Callable[[], Report] | None]]" = nullcontext) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP. For the main thread.

        What `beside` gives is entered when clients may come, and left before anything stops. The process is not ready
        before it is entered. Meanwhile what it is entered as tells whether it is alive.
        """
        supervisor = SystemdSupervisor()

        def tell_alive() -> None:
            if supervisor.awaits_a_sign() and self._health.liveness().has_passed:
                supervisor.tell_alive()

        self._health.is_starting = True
        with interruption() as interrupted, self, beside() as self._health.beside:
            self._health.is_starting = False
            supervisor.tell_ready()
            interrupted.wait(tell_alive)
            supervisor.tell_stopping()
            self._health.end()
            logger.info("stopping")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- how it does it -----------------------------------------------------------------------

    def _marked(self) -> AbstractContextManager[None]:
        """Clients wait meanwhile, unless a PostgreSQL answers already: of another process, or of a killed one."""
        home = self._settings.home
        if self._settings.broker is not None or attach(home) is not None:
            return nullcontext()
        return mark_starting(Home(home))

    def _open_postgres(self) -> SharedPostgres:
        wanted = self._settings.port
        postgres = open_or_attach(self._settings.home, port=wanted, outlives_owner=self._outlives_owner)
        if wanted not in (0, postgres.port):
            logger.warning(
                "the PostgreSQL of this home runs already, on another port",
                extra={"port": postgres.port, "wanted_port": wanted},
            )
        return postgres

    def _broker(self) -> BrokerDsn:
        broker = self._settings.broker
        if broker is not None:
            return broker
        if self._postgres is None:
            raise IllegalState("the server", "not started")
        return BrokerDsn(self._settings.broker_name, self._postgres.dsn)

    def _connect(self) -> Connection:
        """A connection to where the database is now: an embedded one may come back on another port."""
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

    def _connect_to_lead(self) -> Connection:
        """A connection for leadership, which asks for one at the start and after each failure.

        By then the database may be another one: dropped and made anew, or restored.
        """
        self._bring_to_head()
        return self._connect()

    def _bring_to_head(self) -> None:
        """The schema as this mqdb speaks it, the broker under the name that the settings know, and as they say."""
        broker = self._broker()
        with self._connect() as connection, translated(redact(broker.dsn)):
            try:
                self._bring_to_head_on(connection, broker)
            finally:
                # In the pool it would outlive the database.
                connection.invalidate()

    def _bring_to_head_on(self, connection: Connection, broker: BrokerDsn) -> None:
        try:
            migrations.check_schema(connection)
        except (SchemaMissing, SchemaTooOld) as error:
            if not self._settings.auto_migrate_enable and self._settings.broker is not None:
                raise
            if isinstance(error, SchemaMissing):
                migrations.upgrade(broker.dsn, broker_name=broker.name, cluster_name=self._settings.cluster_name)
            else:
                migrations.upgrade(broker.dsn)
            logger.info("brought the schema to head", extra={"revision": migrations.head()})
        self._info = found = broker_info(connection)
        found.require_name(broker.name, redact(broker.dsn))
        if is_guest(connection):
            reason = "its role does not own the broker, so it could never lead"
            raise SettingInvalid("dsn", redact(broker.dsn), self._settings.origin("dsn"), reason)
        self._settings.check_cluster_name(found.cluster_name)
        for change in change_settings(connection, broker_settings(self._settings), self._settings.delay_levels):
            logger.warning("changed a setting of the broker", extra=change._asdict())

    def _make_services(self, scheduler: BackgroundScheduler) -> list[Service[Any]]:
        of = self._context_of
        # Their work begins with dispatched records.
        followers = KeyIndexer(of(KeyIndexer)), DelayDeliverer(of(DelayDeliverer)), TimerDeliverer(of(TimerDeliverer))

        def wake_followers() -> None:
            for service in followers:
                service.wake()

        return [
            Dispatcher(of(Dispatcher), dispatcher_config(self._settings), on_dispatched=wake_followers),
            *followers,
            SegmentKeeper(of(SegmentKeeper), scheduler, keeper_config(self._settings)),
            ClientReaper(of(ClientReaper), scheduler),
            TimerKeeper(of(TimerKeeper), scheduler),
            TransactionChecker(of(TransactionChecker), scheduler, checker_config(self._settings)),
            CronSender(of(CronSender)),
        ]

    def _context_of(self, kind: type[Service[Any]]) -> Context:
        context = Context(self._connect, may_act=self._leadership.is_leader, on_round=self._note_failure)
        return self._rounds.watch(kind.name, context)

    def _note_failure(self, outcome: object) -> None:
        """A service that has lost its connection notices that before leadership does, which looks once a second."""
        if isinstance(outcome, Exception):
            self._leadership.wake()

    def _start_web(self, address: HttpAddress) -> "WebServer":
        """Serve metrics and health, and take samples while this process leads."""
        # Nobody else pays for the import of their libraries.
        from mqdb.web.application import create_application
        from mqdb.web.collector import BrokerCollector
        from mqdb.web.proxies import Proxies
        from mqdb.web.sampler import Sampler, SamplerConfig
        from mqdb.web.web_server import serve_web

        assert self._info is not None
        config = SamplerConfig(per_queue=self._settings.metrics_topics)
        sampler = Sampler(self._context_of(Sampler), config, self._lag_history)
        self._services.append(sampler)
        names = self._info.broker_name, self._info.cluster_name
        metrics: list[Metrics] = [
            BrokerCollector(
                *names,
                health=self._health,
                rounds=self._rounds,
                sampler=sampler,
                is_leader=self._leadership.is_leader,
            )
        ]
        if self._more_metrics is not None:
            metrics.append(self._more_metrics(*names))
        application = create_application(
            self._health,
            *metrics,
            loopback_only=address.is_loopback,
            passwords=self._settings.web_passwords,
            proxies=Proxies.of(self._settings),
            pages=self._pages,
        )
        return serve_web(self._settings, address, application)

    def _lead(self) -> None:
        self._rounds.services_start()
        for service in self._services:
            service.start()

    def _follow(self) -> None:
        self._rounds.services_stop()
        # All at once: none waits for the last round of another.
        for service in self._services:
            service.halt()
        for service in self._services:
            service.stop()
