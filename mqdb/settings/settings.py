"""Settings: every value that a user can set, and its source.

An argument takes precedence over the environment (`MQDB_` and the name in capitals), which takes precedence over a TOML
file, and this over the default. The file is `mqdb.toml` in the home directory, or the file given by `--config` or
`MQDB_CONFIG`. An empty variable counts as unset. Blanks around a value are stripped. A bad value raises SettingInvalid,
which names the value, its source and the remedy; passwords are never shown.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator

from mqdb.common.delay_level import DelayLevels, parse_delay_levels
from mqdb.common.dsn import HIDDEN, BrokerDsn, hide_dsn, is_broker_name, parse_brokers, redact
from mqdb.common.durability import Durability
from mqdb.common.duration import duration_text
from mqdb.common.http_address import HttpAddress, Network, parse_http_address, parse_networks
from mqdb.common.topic import MAX_TOPIC_LENGTH, check_topic_name, reply_topic
from mqdb.errors import DelayLevelsInvalid, NameInvalid, SettingInvalid, shown
from mqdb.settings.layers import (
    DEFAULT,
    ENV_PREFIX,
    Layer,
    default_home,
    home_of,
    read_environment,
    read_file,
    stripped,
    variable_of,
)
from mqdb.settings.values import Address, Directory, File, Hours, Percent, Topics, at_least

_DSNS = ("dsn", "pool_dsn")
_PASSWORD = "web_password"

#: Other environment variables, read by mqdb, docker-compose.yml and tests.
_OTHER_VARIABLES: Final = tuple(
    ENV_PREFIX + name for name in ("CONFIG", "DEBUG", "PG_BIN", "PG_USER", "PG_JAR", "PASSWORD", "PUBLISHED_PORT")
)
_OF_TESTS: Final = re.compile(
    ENV_PREFIX + r"((FAULT|FUZZ|REQUIRE|TEST)_\w+|\w+_(SEEDS?|CASES|RUNS|LOST_SENDS)|JAVA_CACHE|PG15_BIN)"
)


class SettingLine(NamedTuple):
    """One line of `mqdb config`: the value in its written form, without passwords."""

    name: str
    value: str
    origin: str


class Settings(BaseModel):
    """All settings of one process. Made by `load_settings`; immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    dsn: str | None = None
    """The database, or a list of databases; None means the embedded PostgreSQL in `home`."""
    pool_dsn: str | None = None
    """A pooler in front of `dsn`, for everything except LISTEN and session locks; a list if `dsn` is a list."""
    home: Directory = Field(default_factory=default_home)
    """The directory of the embedded PostgreSQL, of `mqdb.toml` and of broadcasting consumers' offsets."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port of the embedded PostgreSQL; 0 is any free one."""
    broker_name: str = "broker-a"
    """The name of a broker whose DSN does not give one."""
    cluster_name: str = "DefaultCluster"
    """The cluster name that a broker gets with its schema, which names the reply topic. RocketMQ: brokerClusterName."""
    auto_migrate_enable: bool = True
    """Let `mqdb serve` upgrade the schema of `dsn` to head; the embedded database is always upgraded."""
    wait_for_primary: bool = False
    """Let `mqdb serve` start if `dsn` leads to a standby, and wait until it leads to the primary. If off, `mqdb serve`
    exits.
    """
    auto_create_topic_enable: bool = True
    """Let a producer create a missing topic when it first sends to it. RocketMQ: autoCreateTopicEnable."""
    default_topic_queue_nums: int = Field(default=4, ge=1, le=1_024)
    """The number of queues of a topic that a producer creates. RocketMQ: defaultTopicQueueNums."""
    send_message_timeout: Annotated[timedelta, *at_least("1ms")] = timedelta(seconds=3)
    """The maximum duration of a send, including retries. RocketMQ: sendMsgTimeout."""
    file_reserved_time: Annotated[timedelta, *at_least("1s")] = timedelta(hours=72)
    """The time for which a message is kept, whether it is consumed or not."""
    delete_when: Hours = (4,)
    """Hours of the day, local time, at which messages older than `file_reserved_time` are dropped."""
    disk_max_used_space_percent: Percent = 75
    """Above this usage of the embedded PostgreSQL's disk, old messages are dropped at any hour."""
    disk_clean_forcibly_percent: Percent = 85
    """Above this usage, messages younger than `file_reserved_time` are dropped, too."""
    retain_until_archived: bool = False
    """Drop nothing that `mqdb spark archive` has not archived with all topics, however old the messages are and however
    full the disk is."""
    enable_property_filter: bool = True
    """Let consumers subscribe by SQL92; `mqdb serve` sets it for its broker. Tags always work."""
    filter_support_retry: bool = False
    """Apply the SQL92 filter of the topic to retries, too; `mqdb serve` sets it for its broker."""
    message_delay_level: str | None = None
    """The delays of the levels 1, 2, ..., with the units s, m, h and d; `mqdb serve` sets it for its broker."""
    transaction_timeout: Annotated[timedelta, *at_least("100ms")] = timedelta(seconds=6)
    """The age of a half message at which its producer is first asked about it."""
    transaction_check_interval: Annotated[timedelta, *at_least("100ms")] = timedelta(seconds=30)
    """The time that a producer has to answer before a producer is asked again."""
    transaction_check_max: int = Field(default=15, ge=1, le=1_000_000)
    """The number of checks without an outcome after which a half message goes to TRANS_CHECK_MAX_TIME_TOPIC."""
    reject_transaction_message: bool = False
    """Refuse half messages; `mqdb serve` sets it for its broker."""
    default_durability: Durability | None = None
    """The durability for producers that do not choose one;

    `mqdb serve` sets it for its broker. If unset, the broker's value is not changed.
    """
    actor: str | None = None
    """The person or program behind the changes made by this process. If unset, commands name the user who runs them."""
    operation_reserved_time: Annotated[timedelta, *at_least("1s")] = timedelta(days=365)
    """The time for which `mqdb serve` keeps the list of changes by people and tools."""
    timer_max_delay: Annotated[timedelta, *at_least("1s")] | None = None
    """The maximum time until delivery; there is no limit if unset. `mqdb serve` sets it for its broker."""
    web_password: Annotated[str, Field(min_length=1)] | None = None
    """The password for `http`: the dashboard asks for it in a form;

    `/metrics` accepts it as the password of any user or as a bearer token.
    """
    web_viewer_password: Annotated[str, Field(min_length=1)] | None = None
    """The password for viewers, who can see the dashboard and `/metrics` but change nothing."""
    web_user_header: Annotated[str, Field(pattern="^[A-Za-z0-9-]+$")] | None = None
    """The header in which a trusted proxy names a person, who has the rights granted to this name with `mqdb acl`."""
    web_trusted_proxies: str | None = None
    """The addresses or networks of the proxies that may send `web_user_header`, separated by commas."""
    web_read_only: bool = False
    """Refuse all changes in the dashboard, whose sessions in the database are read-only, too."""
    metrics_per_queue: Topics | None = None
    """The topics for which `/metrics` has metrics of each queue, as complete names separated by commas."""
    http: str | None = None
    """The address at which `mqdb serve` and `mqdb web` serve HTTP, as host:port; if unset, `mqdb serve` does not.

    An address beyond loopback requires a password or trusted proxies.
    """
    remoting_open: bool = False
    """Serve all clients at `remoting`, also beyond loopback, while no access key has a secret."""
    remoting: Address | None = None
    """The host:port at which `mqdb serve` (only if set) and `mqdb remoting` listen for RocketMQ's clients."""
    remoting_certificate: File | None = None
    """A certificate in PEM, with which `remoting` also accepts TLS, on the same port."""
    remoting_certificate_key: File | None = None
    """The certificate's key, in PEM and unencrypted; if unset, the key is read from the certificate's file."""
    remoting_tls_only: bool = False
    """Refuse clients that do not use TLS. RocketMQ: tls.server.mode=enforcing."""
    remoting_advertised: Address | None = None
    """The address at which clients find `remoting`, if it differs from the listening address, as behind NAT."""
    grpc_open: bool = False
    """Serve all clients at `grpc`, also beyond loopback, while no access key has a secret."""
    grpc: Address | None = None
    """The host:port at which `mqdb serve` (only if set) and `mqdb grpc` listen for RocketMQ 5's SDKs."""
    grpc_tls: Address | None = None
    """The address for SDKs that use TLS, as host:port. The SDKs for Java, Go, C# and C++ use TLS by default."""
    grpc_certificate: File | None = None
    """The certificate of `grpc_tls` in PEM; if unset, a self-signed one is made at each start."""
    grpc_certificate_key: File | None = None
    """The certificate's key, in PEM and unencrypted; if unset, the key is read from the certificate's file."""
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def brokers(self) -> tuple[BrokerDsn, ...]:
        """The brokers in `dsn`, in order; empty means the embedded broker."""
        return parse_brokers(self.dsn, self.broker_name) if self.dsn else ()

    @property
    def broker(self) -> BrokerDsn | None:
        """The broker of the settings; None means the embedded broker. Raises SettingInvalid if there are several."""
        brokers = self.brokers
        if len(brokers) > 1:
            names = ", ".join(broker.name for broker in brokers)
            reason = f"lists several brokers, {names}; this command works on one, so give only one with --dsn"
            raise SettingInvalid("dsn", redact(self.dsn or ""), self.origin("dsn"), reason)
        return brokers[0] if brokers else None

    def pool_dsn_of(self, broker_name: str) -> str | None:
        """The pooler in front of a broker; None if it has no pooler."""
        pools = parse_brokers(self.pool_dsn, self.broker_name) if self.pool_dsn else ()
        if len(pools) == 1 and len(self.brokers) == 1:
            return pools[0].dsn
        return next((pool.dsn for pool in pools if pool.name == broker_name), None)

    @property
    def delay_levels(self) -> DelayLevels | None:
        """The delay levels of `message_delay_level`; None if it is not set."""
        return None if self.message_delay_level is None else parse_delay_levels(self.message_delay_level)

    @property
    def http_address(self) -> HttpAddress | None:
        """The address of `http`; None if it is not set."""
        return None if self.http is None else parse_http_address(self.http)

    @property
    def remoting_address(self) -> HttpAddress | None:
        """The address of `remoting`; None if it is not set."""
        return None if self.remoting is None else parse_http_address(self.remoting)

    @property
    def remoting_advertised_address(self) -> HttpAddress | None:
        """The address of `remoting_advertised`; None if it is not set."""
        return None if self.remoting_advertised is None else parse_http_address(self.remoting_advertised)

    @property
    def grpc_address(self) -> HttpAddress | None:
        """The address of `grpc`; None if it is not set."""
        return None if self.grpc is None else parse_http_address(self.grpc)

    @property
    def grpc_tls_address(self) -> HttpAddress | None:
        """The address of `grpc_tls`; None if it is not set."""
        return None if self.grpc_tls is None else parse_http_address(self.grpc_tls)

    @property
    def web_passwords(self) -> tuple[str, ...]:
        """The passwords that `http` accepts."""
        return tuple(each for each in (self.web_password, self.web_viewer_password) if each is not None)

    @property
    def trusted_networks(self) -> tuple[Network, ...]:
        """The networks of `web_trusted_proxies`."""
        return () if self.web_trusted_proxies is None else parse_networks(self.web_trusted_proxies)

    @property
    def metrics_topics(self) -> tuple[str, ...]:
        """The topics of `metrics_per_queue`."""
        return tuple(self.metrics_per_queue.split(", ")) if self.metrics_per_queue else ()

    def check_cluster_name(self, found: str) -> None:
        """Raise SettingInvalid if the cluster name was set and differs from that of a broker."""
        origin = self.origin("cluster_name")
        if origin != DEFAULT and self.cluster_name != found:
            reason = f"the broker belongs to cluster {found!r}; leave it out, or UPDATE mqdb.broker"
            raise SettingInvalid("cluster_name", self.cluster_name, origin, reason)

    def origin(self, name: str) -> str:
        """`argument`, `environment MQDB_PORT`, `file /etc/mqdb.toml` or `default`."""
        return self._origins.get(name, DEFAULT)

    def lines(self) -> list[SettingLine]:
        """Every setting, in the order of this class."""
        return [SettingLine(name, self.shown(name), self.origin(name)) for name in type(self).model_fields]

    def shown(self, name: str) -> str:
        """The value of a setting in its written form, without passwords."""
        match value := getattr(self, name):
            case None:
                return ""
            case bool():
                return str(value).lower()
            case timedelta():
                return duration_text(value, fewest_days=7)
            case tuple():
                return ";".join(f"{hour:02}" for hour in value)
            case _:
                return str(_safe(name, value))

    @field_validator(*_DSNS)
    @classmethod
    def _is_dsn(cls, value: str | None) -> str | None:
        if value is not None:
            parse_brokers(value, default_name="")
        return value

    @field_validator("pool_dsn")
    @classmethod
    def _pools_something(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("dsn", value) is None:
            raise ValueError("set dsn as well: LISTEN and session locks cannot go through a pooler")
        return value

    @field_validator("broker_name", "cluster_name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not is_broker_name(value):
            raise ValueError("must consist of letters, digits, and _ . @ - after the first character")
        if len(value) > MAX_TOPIC_LENGTH:
            raise ValueError(f"has {len(value):,} characters, the limit is {MAX_TOPIC_LENGTH}")
        return value

    @field_validator("cluster_name")
    @classmethod
    def _names_a_topic(cls, value: str) -> str:
        try:
            check_topic_name(reply_topic(value))
        except NameInvalid as error:
            raise ValueError(f"it names the topic of replies: {error}") from None
        return value

    @field_validator("message_delay_level")
    @classmethod
    def _is_delay_levels(cls, value: str | None) -> str | None:
        try:
            return None if value is None else parse_delay_levels(value).text
        except DelayLevelsInvalid as error:
            raise ValueError(f"{shown(hide_dsn(error.word))} {error.reason}") from error

    @field_validator("web_viewer_password")
    @classmethod
    def _is_for_viewers_only(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value == info.data.get("web_password"):
            raise ValueError("is the same as web_password, which allows everything")
        return value

    @field_validator("web_trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            value = ", ".join(map(str, parse_networks(value)))
        if (value is None) != (info.data.get("web_user_header", value) is None):
            raise ValueError("set both web_user_header and web_trusted_proxies, or neither")
        return value

    @field_validator("http")
    @classmethod
    def _is_http_address(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        address = parse_http_address(value)
        # An invalid password counts as missing; of the two faults, only the first is reported.
        ways = ("web_password", "web_viewer_password", "web_trusted_proxies")
        if not address.is_loopback and all(info.data.get(each, "") is None for each in ways):
            raise ValueError(
                "every client that can connect to this address could use it; set web_password, or use 127.0.0.1"
            )
        return str(address)

    @field_validator("disk_clean_forcibly_percent")
    @classmethod
    def _disk_limits_rise(cls, value: int, info: ValidationInfo) -> int:
        lower = "disk_max_used_space_percent"
        if value < info.data.get(lower, 0):
            raise ValueError(f"must not be less than {lower}, which is {info.data[lower]}")
        return value

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [(name, _safe(name, value)) for name, value in self]


def load_settings(*, config: str | Path | None = None, **arguments: Any) -> Settings:
    """Load the settings of this process. An argument that is None counts as not given.

    `config` names the TOML file, which must exist if given. Raises SettingInvalid.
    """
    argument = Layer("argument", stripped({name: value for name, value in arguments.items() if value is not None}))
    environment = read_environment(Settings.model_fields)
    file = read_file(config, home_of(argument, environment))
    _refuse_unknown(argument)
    _refuse_unknown(file)

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in (file, environment, argument):
        values |= layer.values
        origins |= {name: layer.origin(name) for name in layer.values}
    try:
        settings = Settings(**values)
    except ValidationError as exc:
        # Not chained: pydantic's message repeats the value, which may contain a password.
        raise _first_fault(exc, origins) from None
    settings._origins = origins
    _refuse_two_names(settings)
    return settings


class UnknownVariable(NamedTuple):
    """An environment variable that mqdb does not read. The value is never shown, because it may be a password."""

    name: str
    near: str | None
    """The known setting with the most similar name."""


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[UnknownVariable]:
    """The variables named MQDB_... that mqdb does not read, sorted by name. An empty variable counts as unset."""
    known = [*map(variable_of, Settings.model_fields), *_OTHER_VARIABLES]
    return [
        UnknownVariable(name, next(iter(get_close_matches(name.upper(), known, n=1)), None))
        for name, value in sorted(environ.items())
        if name.upper().startswith(ENV_PREFIX) and value and name not in known and not _OF_TESTS.fullmatch(name)
    ]


def _refuse_unknown(layer: Layer) -> None:
    known = list(Settings.model_fields)
    for name, value in layer.values.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
            raise SettingInvalid(name, _safe(name, value), layer.origin(name), f"there is no such setting; {remedy}")


def _first_fault(exc: ValidationError, origins: Mapping[str, str]) -> SettingInvalid:
    fault = exc.errors(include_url=False)[0]
    name = str(fault["loc"][0])
    reason = fault["msg"].removeprefix("Value error, ")
    value = fault["input"] if len(fault["loc"]) == 1 else str(fault["input"])
    return SettingInvalid(name, _safe(name, value), origins.get(name, DEFAULT), reason[0].lower() + reason[1:])


def _refuse_two_names(settings: Settings) -> None:
    """Raise SettingInvalid for a single DSN with a name if `broker_name` gives another name."""
    brokers = settings.brokers
    origin = settings.origin("broker_name")
    if origin != DEFAULT and len(brokers) == 1 and brokers[0].name != settings.broker_name:
        raise SettingInvalid(
            "broker_name", settings.broker_name, origin, f"the dsn names the broker {brokers[0].name!r}"
        )


def _safe(name: str, value: object) -> object:
    """A value of any type without passwords. The value of an unknown setting may have been meant for `dsn`."""
    if value is not None and ("password" in name or get_close_matches(name, [_PASSWORD])):
        return HIDDEN
    if value is None or isinstance(value, bool | int | float | timedelta):
        return value
    text = value if isinstance(value, str) else str(value) if isinstance(value, Path) else shown(value)
    return hide_dsn(text) if name in Settings.model_fields and name not in _DSNS else redact(text)
