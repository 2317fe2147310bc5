"""The options of clients. The configuration of a client lists each option once; its constructor takes them over.

@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    #: Messages of each queue in one answer of the broker, at most.
    pull_batch_size: Annotated[int, whole(1, 1_024)] = 32

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
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar, get_args

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
    check_options,
    one_of,
    or_none,
    whole,
)

_Client = TypeVar("_Client")
_Config = TypeVar("_Config")
_Options = ParamSpec("_Options")

#: Stands for a name that no other process has. Source: ClientConfig.changeInstanceNameToPID.
DEFAULT_INSTANCE_NAME: Final = "DEFAULT"


def configured_by(
    config: Callable[_Options, _Config],
) -> Callable[[Callable[[_Client, _Config], None]], Callable[Concatenate[_Client, _Options], None]]:
    """Make a constructor that takes a configuration take its options instead, by their names and with their defaults.

    It raises what the configuration raises, and TypeError for an unknown option.
    """
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

        client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        # `wraps` tells of the configuration; people, and typing.get_type_hints, want its options.
        del __init__.__wrapped__
        __init__.__annotations__ = {each.name: each.annotation for each in parameters}
        __init__.__signature__ = inspect.Signature([client, *parameters], return_annotation=None)  # type: ignore[attr-defined]
        return __init__

    return decorate


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The options that all clients have. `settings_of` makes one of `dsn` and `settings`, which exclude each other."""

    group: str
    dsn: str | None = field(default=None, repr=False)
    settings: Settings | None = None
    _: KW_ONLY
    #: Clients of a process that have the same one share connections and a client id; DEFAULT is this process's own.
    instance_name: Annotated[str, INSTANCE_NAME] = DEFAULT_INSTANCE_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The options that both kinds of consumers have. Raises NameInvalid, ParameterInvalid."""

    #: Where a new group starts to read a topic.
    consume_from_where: Annotated[ConsumeFromWhere, one_of(ConsumeFromWhere)] = ConsumeFromWhere.LAST_OFFSET
    #: Aware; where it starts under TIMESTAMP. None: half an hour before the start.
    consume_timestamp: Annotated[datetime | None, or_none(AWARE_TIME)] = None
    #: Which of a topic's queues are whose; the same for all members.
    allocate_message_queue_strategy: Annotated[AllocationStrategy[Any], STRATEGY] = allocate_averagely
    #: Of the subscriptions. Members that subscribe to something else need a higher one.
    subscription_version: Annotated[int, whole(0, 2**63 - 1)] = 0
    #: A queue with more messages in hand is not pulled.
    pull_threshold_for_queue: Annotated[int, whole(1, 65_535)] = 1_000
    #: A queue with more MiB of bodies in hand is not pulled.
    pull_threshold_size_for_queue_mib: Annotated[int, whole(1, 1_024)] = 100
    #: Between rebalances that nothing has caused.
    rebalance_interval: Annotated[timedelta, DURATION] = timedelta(seconds=20)
    #: A queue that rebalance has moved here is taken by force when its owner has kept it for so long.
    hand_over_grace: Annotated[timedelta, DURATION] = timedelta(seconds=30)
    #: How long a shutdown waits for running listeners.
    shutdown_timeout: Annotated[timedelta, SHUTDOWN_TIMEOUT] = timedelta(seconds=25)

    def __post_init__(self) -> None:
        check_group_name(self.group)
        check_options(self)


def settings_of(dsn: str | None, settings: Settings | None) -> Settings:
    """The settings of a client that was given a DSN, settings or none of the two.

    Raises ParameterInvalid, SettingInvalid.
    """
    if dsn is not None and settings is not None:
        raise ParameterInvalid("dsn", redact(dsn), "give dsn or settings, not both: the settings hold a dsn")
    given: object = settings
    if not isinstance(given, Settings | None):
        reason = f"is {type(given).__name__}; give Settings, as load_settings() returns them"
        raise ParameterInvalid("settings", given, reason)
    return settings if settings is not None else load_settings(dsn=dsn)
