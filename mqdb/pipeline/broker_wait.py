"""Work of Spark's processes that survives an outage of the broker: a restart, a failover, a broken network.

A streaming query ends at the first error that Spark sees. So planning, reading, staging and commits wait for the broker
themselves, for up to brokerWaitSeconds. Spark's Python workers import this module.
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

from mqdb.common.backoff import pauses
from mqdb.common.clock import Clock, SystemClock
from mqdb.errors import BrokerUnavailable
from mqdb.pipeline.errors import OptionInvalid

logger = logging.getLogger(__name__)

#: The option of reads and writes, and its default: a failover with Patroni takes 30 to 45 s.
OPTION: Final = "brokerWaitSeconds"
DEFAULT_SECONDS: Final = 60.0

#: The maximum pause, after which a server that is back is found.
_LONGEST_PAUSE_SECONDS: Final = 2.0

_CLOCK: Final = SystemClock()

_Result = TypeVar("_Result")


def patiently(
    work: Callable[[], _Result],
    purpose: str,
    seconds: float,
    *,
    clock: Clock = _CLOCK,
    sleep: Callable[[float], object] = time.sleep,
) -> _Result:
    """The result of `work`, which is repeated while the broker is unavailable, until `seconds` after its first failure.

    So `work` must be safe to repeat, even after an attempt with an unknown outcome. `purpose` completes the log message
    "waiting for the broker to ...". Raises the errors of `work`; BrokerUnavailable immediately if waiting cannot help,
    otherwise after the last attempt, which is made when the time is over.
    """
    try:
        return work()
    except BrokerUnavailable as first:
        if not first.may_pass or seconds <= 0:
            raise
        logger.warning("waiting for the broker to %s, for at most %g s: %s", purpose, seconds, first)
    began = clock.monotonic()
    for pause in pauses(_LONGEST_PAUSE_SECONDS):
        # The last pause is shortened, so that the last attempt is made when the time is over.
        left = began + seconds - clock.monotonic()
        is_last = left <= pause
        sleep(max(0.0, min(pause, left)))
        try:
            result = work()
        except BrokerUnavailable as error:
            if not error.may_pass or is_last:
                waited = clock.monotonic() - began
                error.add_note(f"waited {waited:.1f} s for the broker to {purpose} (option {OPTION})")
                raise
        else:
            logger.info("waited %.1f s for the broker to %s", clock.monotonic() - began, purpose)
            return result
    raise AssertionError("pauses have no end")


def parse_seconds(name: str, text: str) -> float:
    """The value of an option for a waiting time. Raises OptionInvalid."""
    if not re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        raise OptionInvalid(name, text, "write seconds as 30 or 0.5")
    return float(text)
