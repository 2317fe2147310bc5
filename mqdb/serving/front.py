"""The front for RocketMQ's clients: from the settings to one that answers."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mqdb.common.dsn import BrokerDsn
from mqdb.errors import CannotListen, SettingInvalid
from mqdb.settings import Settings

if TYPE_CHECKING:
    from mqdb.remoting.front import Front
    from mqdb.remoting.session.traffic import Traffic


@contextmanager
def front_of(
    settings: Settings, dsn: str, pool_dsn: str | None = None, traffic: "Traffic | None" = None
) -> "Iterator[Front | None]":
    """The front for RocketMQ's clients, if the settings say where; `traffic` gets its counts.

    Raises CannotListen, and SettingInvalid for a setting that it cannot use.
    """
    if settings.remoting_address is None:
        yield None
        return
    # Nobody else pays for the import of its libraries.
    from mqdb.fronts.access_keys import OpenToAll
    from mqdb.remoting.front import Front
    from mqdb.remoting.session.listener import Tls

    name = settings.broker.name if settings.broker else settings.broker_name
    is_open = settings.remoting_address.is_loopback or settings.remoting_open
    advertised = settings.remoting_advertised_address
    tls = None
    if (certificate := settings.remoting_certificate) is not None:
        tls = Tls(certificate, settings.remoting_certificate_key or certificate, settings.remoting_tls_only)
        try:
            tls.context()
        except OSError as error:
            origin = settings.origin("remoting_certificate")
            reason = f"it, or its key, cannot be used: {error.strerror or error}"
            raise SettingInvalid("remoting_certificate", str(certificate), origin, reason) from error
    elif settings.remoting_tls_only:
        reason = "there is no TLS without remoting_certificate"
        raise SettingInvalid("remoting_tls_only", True, settings.origin("remoting_tls_only"), reason)
    front = Front(
        BrokerDsn(name, dsn),
        settings.remoting_address,
        advertised,
        is_open=is_open,
        tls=tls,
        pool_dsn=pool_dsn,
        traffic=traffic,
    )
    try:
        front.start()
    except OpenToAll:
        reason = (
            "anybody who reaches it could do all; give an access key a secret (mqdb acl secret), or set remoting_open"
        )
        raise SettingInvalid("remoting", settings.remoting, settings.origin("remoting"), reason) from None
    except OSError as error:
        origin = settings.origin("remoting")
        raise CannotListen("remoting", str(settings.remoting), origin, error.strerror or str(error)) from error
    # All that is loaded stays: full collections need not look at it while requests wait.
    gc.collect()
    gc.freeze()
    try:
        yield front
    finally:
        front.stop()
