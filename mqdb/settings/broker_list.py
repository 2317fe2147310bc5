"""The broker list: the databases in the settings, or the embedded database that runs in the home directory."""

from mqdb.common.dsn import BrokerDsn
from mqdb.embedded import Home, attach, wait_while_starting
from mqdb.errors import BrokerUnavailable
from mqdb.settings import Settings


def brokers_of(settings: Settings) -> tuple[BrokerDsn, ...]:
    """The brokers of the settings, at least one, with passwords.

    Waits a few seconds if the embedded broker is starting. Raises BrokerUnavailable if the embedded broker does not
    run.
    """
    if settings.brokers:
        return settings.brokers
    wait_while_starting(Home(settings.home))
    running = attach(settings.home)
    if running is None:
        reason = "no broker runs in this home; start one with `mqdb serve`, or set MQDB_DSN"
        raise BrokerUnavailable(str(settings.home), reason)
    return (BrokerDsn(settings.broker_name, running.dsn),)
