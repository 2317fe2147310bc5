"""The front for RocketMQ's clients, from its settings to a running front."""

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
    """The front for RocketMQ's clients, if the settings enable it; `traffic` receives its counts.

    Raises CannotListen, and SettingInvalid for an invalid setting.
    """
    if settings.remoting_address is None:
        yield None
        return
    # Imported here, so that only this setting pays for loading its libraries.
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
            reason = f"the certificate or its key cannot be used: {error.strerror or error}"
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
            "every client that can connect could do everything; give an access key a secret (mqdb acl secret), or set "
            "remoting_open"
        )
        raise SettingInvalid("remoting", settings.remoting, settings.origin("remoting"), reason) from None
    except OSError as error:
        origin = settings.origin("remoting")
        raise CannotListen("remoting", str(settings.remoting), origin, error.strerror or str(error)) from error
    # Objects loaded so far are permanent: full garbage collections need not examine them while requests wait.
    gc.collect()
    gc.freeze()
    try:
        yield front
    finally:
        front.stop()
