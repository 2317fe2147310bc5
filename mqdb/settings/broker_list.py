"""The broker list: the databases that the settings name, or the embedded one that runs in the home."""

from mqdb.common.dsn import BrokerDsn
from mqdb.embedded import Home, attach, wait_while_starting
from mqdb.errors import BrokerUnavailable
from mqdb.settings import Settings


def brokers_of(settings: Settings) -> tuple[BrokerDsn, ...]:
    """At least one, with its password. Raises BrokerUnavailable where it is the embedded one and does not run.

    For an embedded one that is just starting it waits for some seconds.
    """
    if settings.brokers:
        return settings.brokers
    wait_while_starting(Home(settings.home))
    running = attach(settings.home)
    if running is None:
        reason = "no broker runs in this home; start one with `mqdb serve`, or set MQDB_DSN"
        raise BrokerUnavailable(str(settings.home), reason)
    return (BrokerDsn(settings.broker_name, running.dsn),)
