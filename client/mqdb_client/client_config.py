"""The options of clients.

A client's configuration lists each option once; the client's constructor takes its options from the configuration.

@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    pull_batch_size: Annotated[int, whole(1, 1_024), "The most messages of each queue in one answer."] = 32

class PushConsumer:
    @configured_by(PushConsumerConfig)
    def __init__(self, config: PushConsumerConfig) -> None: ...

PushConsumer("billing", pull_batch_size=10)
"""

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar, get_args

from mqdb.common.dsn import redact
from mqdb.common.group import ConsumeFromWhere, check_group_name
from mqdb.errors import ParameterInvalid
from mqdb.rebalance import AllocationStrategy, allocate_averagely
from mqdb.settings import Settings, load_settings
from mqdb_client.option_rules import (
    AWARE_TIME,
    DURATION,
    INSTANCE_NAME,
    SHUTDOWN_TIMEOUT,
    STRATEGY,
    Rule,
    check_options,
    one_of,
    or_none,
    whole,
)

_Client = TypeVar("_Client")
_Config = TypeVar("_Config")
_Options = ParamSpec("_Options")

#: Stands for a name that is unique to the process. Source: ClientConfig.changeInstanceNameToPID.
DEFAULT_INSTANCE_NAME: Final = "DEFAULT"


def configured_by(
    config: Callable[_Options, _Config],
) -> Callable[[Callable[[_Client, _Config], None]], Callable[Concatenate[_Client, _Options], None]]:
    """Make a constructor take the options of a configuration by name, with their defaults, instead of a config object.

    The option texts are added to its docstring. The constructor raises the errors of the configuration, and TypeError
    for an unknown option.
    """
    texts = {each.name: _text_of(each) for each in inspect.signature(config).parameters.values()}
    parameters = [
        each.replace(annotation=(*get_args(each.annotation), each.annotation)[0])
        if hasattr(each.annotation, "__metadata__")
        else each
        for each in inspect.signature(config).parameters.values()
    ]

    def decorate(init: Callable[[_Client, _Config], None]) -> Callable[Concatenate[_Client, _Options], None]:
        @wraps(init)
        def __init__(self: _Client, /, *arguments: _Options.args, **options: _Options.kwargs) -> None:
            init(self, config(*arguments, **options))

        options = [f"    {name}: {limits}\n        {text}" for name, (limits, text) in texts.items()]
        __init__.__doc__ = "\n".join([inspect.getdoc(init) or "", "", "Options:", "", *options])
        __init__.options = texts  # type: ignore[attr-defined]  # for the reference
        client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        # `wraps` shows the configuration; people and typing.get_type_hints need its options.
        del __init__.__wrapped__
        __init__.__annotations__ = {each.name: each.annotation for each in parameters}
        __init__.__signature__ = inspect.Signature([client, *parameters], return_annotation=None)  # type: ignore[attr-defined]
        return __init__

    return decorate


def _text_of(option: inspect.Parameter) -> tuple[str, str]:
    """The limits and the default of an option, and its text."""
    metadata: tuple[object, ...] = getattr(option.annotation, "__metadata__", ())
    rules = [rule.reason.removeprefix("must be ").removeprefix("use ") for rule in metadata if isinstance(rule, Rule)]
    if option.default is not inspect.Parameter.empty:
        rules.append(f"default {getattr(option.default, '__name__', option.default)}")
    return "; ".join(rules) or "required", " ".join(text for text in metadata if isinstance(text, str))


#: Options shared by several kinds of consumers.
StartOption: TypeAlias = Annotated[
    ConsumeFromWhere, one_of(ConsumeFromWhere), "The position at which a new group starts to read a topic."
]
StartTimeOption: TypeAlias = Annotated[
    datetime | None,
    or_none(AWARE_TIME),
    "With TIMESTAMP, the time from which a new group reads. None means half an hour before the start.",
]
SubscriptionVersionOption: TypeAlias = Annotated[
    int,
    whole(0, 2**63 - 1),
    "The version of the subscriptions. Members with different subscriptions need a higher version.",
]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The options that all clients have. `settings_of` combines `dsn` and `settings`, which exclude each other."""

    group: Annotated[str, "The name of the producer or consumer group."]
    dsn: Annotated[str | None, "The broker's database, or a list of brokers. The default comes from the settings."] = (
        field(default=None, repr=False)
    )
    settings: Annotated[
        Settings | None, "The settings of the client, as returned by `load_settings`; an alternative to `dsn`."
    ] = None
    _: KW_ONLY
    instance_name: Annotated[
        str,
        INSTANCE_NAME,
        "Clients of a process with the same name share connections and a client id. DEFAULT stands for a name unique "
        "to this process.",
    ] = DEFAULT_INSTANCE_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The options that both kinds of consumers have. Raises NameInvalid, ParameterInvalid."""

    consume_from_where: StartOption = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: StartTimeOption = None
    allocate_message_queue_strategy: Annotated[
        AllocationStrategy[Any],
        STRATEGY,
        "Divides the queues of a topic among the members. All members need the same strategy.",
    ] = allocate_averagely
    subscription_version: SubscriptionVersionOption = 0
    pull_threshold_for_queue: Annotated[
        int, whole(1, 65_535), "While a queue has more messages than this in hand, it is not pulled."
    ] = 1_000
    pull_threshold_size_for_queue_mib: Annotated[
        int, whole(1, 1_024), "While a queue has more MiB of bodies than this in hand, it is not pulled."
    ] = 100
    rebalance_interval: Annotated[timedelta, DURATION, "The time between two rebalances if no event triggers one."] = (
        timedelta(seconds=20)
    )
    hand_over_grace: Annotated[
        timedelta,
        DURATION,
        "The time for which a former owner may keep a queue after a rebalance. After that, this member takes the "
        "queue by force.",
    ] = timedelta(seconds=30)
    shutdown_timeout: Annotated[
        timedelta, SHUTDOWN_TIMEOUT, "The maximum time that a shutdown waits for running listeners."
    ] = timedelta(seconds=25)

    def __post_init__(self) -> None:
        check_group_name(self.group)
        check_options(self)


def settings_of(dsn: str | None, settings: Settings | None) -> Settings:
    """The settings of a client that was given a DSN, settings, or neither.

    Raises ParameterInvalid, SettingInvalid.
    """
    if dsn is not None and settings is not None:
        raise ParameterInvalid("dsn", redact(dsn), "give dsn or settings, not both: the settings hold a dsn")
    given: object = settings
    if not isinstance(given, Settings | None):
        reason = f"is {type(given).__name__}; give Settings, as load_settings() returns them"
        raise ParameterInvalid("settings", given, reason)
    return settings if settings is not None else load_settings(dsn=dsn)
