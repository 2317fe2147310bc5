"""The front for RocketMQ 5's SDKs, from its settings to a running front."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mqdb.common.dsn import BrokerDsn
from mqdb.errors import CannotListen, SettingInvalid
from mqdb.settings import Settings

if TYPE_CHECKING:
    from mqdb.grpc.certificate import Certificate
    from mqdb.grpc.front import GrpcFront
    from mqdb.grpc.traffic import CallTraffic


@contextmanager
def grpc_front_of(
    settings: Settings,
    dsn: str,
    pool_dsn: str | None = None,
    traffic: "CallTraffic | None" = None,
    *,
    shares_port: bool = False,
) -> "Iterator[GrpcFront | None]":
    """The front for RocketMQ 5's SDKs, if the settings enable it; `traffic` receives its counts.

    With `shares_port`, several processes may listen on the same ports.

    Raises CannotListen, and SettingInvalid for an invalid setting.
    """
    address, tls_address = settings.grpc_address, settings.grpc_tls_address
    if address is None:
        if tls_address is not None:
            reason = "it is served in addition to grpc, which is not set"
            raise SettingInvalid("grpc_tls", settings.grpc_tls, settings.origin("grpc_tls"), reason)
        yield None
        return
    # Imported here, so that only this setting pays for loading its libraries.
    from mqdb.fronts.access_keys import OpenToAll
    from mqdb.grpc.front import GrpcFront

    name = settings.broker.name if settings.broker else settings.broker_name
    front = GrpcFront(
        BrokerDsn(name, dsn),
        address,
        tls_address=tls_address,
        certificate=_certificate_of(settings),
        is_open=settings.grpc_open or None,
        pool_dsn=pool_dsn,
        traffic=traffic,
        shares_port=shares_port,
    )
    try:
        front.start()
    except OpenToAll:
        reason = (
            "every client that can connect could do everything; give an access key a secret (mqdb acl secret), "
            "or set grpc_open"
        )
        raise SettingInvalid("grpc", settings.grpc, settings.origin("grpc"), reason) from None
    except OSError as error:
        raise CannotListen("grpc", str(settings.grpc), settings.origin("grpc"), str(error)) from error
    try:
        yield front
    finally:
        front.stop()


def _certificate_of(settings: Settings) -> "Certificate | None":
    if settings.grpc_tls_address is None:
        return None
    from mqdb.grpc.certificate import Certificate, self_signed

    if (path := settings.grpc_certificate) is None:
        return self_signed(settings.grpc_tls_address.host)
    try:
        return Certificate(Path(path).read_bytes(), Path(settings.grpc_certificate_key or path).read_bytes())
    except OSError as error:
        reason = f"the certificate or its key cannot be read: {error.strerror or error}"
        raise SettingInvalid("grpc_certificate", str(path), settings.origin("grpc_certificate"), reason) from error
