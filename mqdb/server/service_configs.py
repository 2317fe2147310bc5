"""Translates the settings into the configurations of the broker and of each service."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from mqdb.broker.transactions.transaction_checks import CheckRules
from mqdb.service.retention import RetentionRules
from mqdb.service.segment_keeper import SegmentKeeperConfig
from mqdb.service.transaction_checker import TransactionCheckerConfig
from mqdb.settings import Settings
from mqdb.store.broker_settings import BrokerSettings


def broker_settings(settings: Settings) -> BrokerSettings:
    """The settings that are stored in the database, for all clients of the broker."""
    max_delay = settings.timer_max_delay
    return BrokerSettings(
        enable_property_filter=settings.enable_property_filter,
        filter_support_retry=settings.filter_support_retry,
        reject_transaction_message=settings.reject_transaction_message,
        timer_max_delay_ms=None if max_delay is None else max_delay // timedelta(milliseconds=1),
    )


def keeper_config(settings: Settings) -> SegmentKeeperConfig:
    """The configuration of the segment keeper under these settings."""
    retention = RetentionRules(
        file_reserved_time=settings.file_reserved_time,
        delete_when=settings.delete_when,
        disk_max_used_space_percent=settings.disk_max_used_space_percent,
        disk_clean_forcibly_percent=settings.disk_clean_forcibly_percent,
    )
    # The disk of a remote server cannot be seen from here.
    disk = _disk_of(settings.home) if settings.broker is None else None
    return SegmentKeeperConfig(
        retention=retention,
        disk_used_percent=disk,
        retain_until_archived=settings.retain_until_archived,
        operation_reserved_time=settings.operation_reserved_time,
    )


def checker_config(settings: Settings) -> TransactionCheckerConfig:
    """The configuration of the transaction checker under these settings."""
    rules = CheckRules(
        transaction_timeout=settings.transaction_timeout,
        check_interval=settings.transaction_check_interval,
        check_max=settings.transaction_check_max,
        reserved=settings.file_reserved_time,
    )
    return TransactionCheckerConfig(rules)


def _disk_of(home: Path) -> Callable[[], float]:
    def used_percent() -> float:
        usage = shutil.disk_usage(home)
        # As a share of the space available to users; some file systems reserve a part for root.
        return 100 * usage.used / (usage.used + usage.free)

    return used_percent
