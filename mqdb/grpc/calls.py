"""Calls: the caller named in the metadata, and whether its signature is valid.

SDKs sign only the time that they send, with the secret of their access key, and no other part of the call. An
eavesdropper can therefore repeat a call, so secrets need TLS. The time is not checked, because two SDKs send their
local time as UTC.
RocketMQ: ContextInitPipeline, AuthenticationPipeline, DefaultAuthenticationProvider.
"""

import hmac
import re
from dataclasses import dataclass
from typing import Final, Protocol

from mqdb.errors import SignatureInvalid
from mqdb.fronts.access_keys import AccessKeys
from mqdb.fronts.known_names import group_of_key, id_with_key
from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.grpc.wire.status import CallRefused

_CLIENT_ID: Final = "x-mq-client-id"
_DATE_TIME: Final = "x-mq-date-time"

#: Maximum length of a client id; SDKs use about 60 characters.
_MOST_CHARACTERS: Final = 255

_AUTHORIZATION: Final = re.compile(r"MQv2-HMAC-SHA1 Credential=([^,/]*)[^,]*, *SignedHeaders=[^,]*, *Signature=(\w*)")


class CallContext(Protocol):
    """The part of grpc.aio.ServicerContext that is used here."""

    def invocation_metadata(self) -> "tuple[tuple[str, str | bytes], ...] | None":
        """The metadata, as names and values."""

    def peer(self) -> str:
        """The address from which the call comes."""

    def time_remaining(self) -> float:
        """Seconds until the client stops waiting; None if it waits forever."""


@dataclass(frozen=True, slots=True)
class Call:
    """The caller of a call."""

    #: The client id that the broker uses.
    client_id: str
    #: Namespace of topics and groups that do not name one themselves.
    namespace: str
    language: str
    version: str
    #: "" if no key is required.
    access_key: str
    peer: str

    def producer_group(self, topic: str) -> str:
        """The group of the client's half messages at the broker: the topic, because SDKs have no producer groups."""
        return group_of_key(topic, self.access_key)


class Callers:
    """Reads the metadata of calls, for one front."""

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys

    def caller(self, context: CallContext) -> Call:
        """The caller of a call.

        Raises CallRefused if there is no client id, and SignatureInvalid if keys are required and the call is not
        signed.
        """
        metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        client_id = metadata.get(_CLIENT_ID, "")
        if not client_id:
            raise CallRefused(Code.CLIENT_ID_REQUIRED, f"the metadata lacks {_CLIENT_ID}")
        if len(client_id) > _MOST_CHARACTERS or not client_id.isprintable():
            reason = f"{_CLIENT_ID} is longer than {_MOST_CHARACTERS} characters, or contains control characters"
            raise CallRefused(Code.BAD_REQUEST, reason)
        access_key = self._signer(metadata) if self._keys.are_asked_for else ""
        return Call(
            id_with_key(client_id, access_key),
            metadata.get("x-mq-namespace", ""),
            metadata.get("x-mq-language", "")[:32],
            metadata.get("x-mq-client-version", "")[:32],
            access_key,
            address_of(context.peer()),
        )

    def _signer(self, metadata: dict[str, str]) -> str:
        found = _AUTHORIZATION.match(metadata.get("authorization", ""))
        if found is None:
            raise SignatureInvalid("")
        name, signature = found.groups()
        if not is_signed(self._keys.secret_of(name), metadata.get(_DATE_TIME, ""), signature):
            raise SignatureInvalid(name)
        return name


def is_signed(secret: str, text: str, signature: str) -> bool:
    """Whether the signature of a text is correct: HMAC with SHA-1, as hexadecimal digits in either case."""
    right = hmac.digest(secret.encode(), text.encode(), "sha1").hex()
    return hmac.compare_digest(right.encode(), signature.lower().encode())


def address_of(peer: str) -> str:
    """The `address:port` of a peer in gRPC's notation: ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711."""
    kind, _, address = peer.partition(":")
    if kind == "ipv4":
        return address
    is_own = kind == "ipv6" and address.startswith("%5B::1%5D")
    return f"127.0.0.1:{address.rpartition(':')[2]}" if is_own else "0.0.0.0:0"
