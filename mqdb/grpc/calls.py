"""Calls: the caller according to the metadata, and whether that is true.

SDKs sign the time that they send, with the secret of their access key, and nothing of the call. A listener on the line
can repeat a call, so secrets need TLS. The time is not checked, because two SDKs send their local time as UTC.
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

#: Of a client id; an SDK makes some 60 of them.
_MOST_CHARACTERS: Final = 255

_AUTHORIZATION: Final = re.compile(r"MQv2-HMAC-SHA1 Credential=([^,/]*)[^,]*, *SignedHeaders=[^,]*, *Signature=(\w*)")


class CallContext(Protocol):
    """The part of grpc.aio.ServicerContext that is used here."""

    def invocation_metadata(self) -> "tuple[tuple[str, str | bytes], ...] | None":
        """Names and values."""

    def peer(self) -> str:
        """The address from which the call comes."""

    def time_remaining(self) -> float:
        """Seconds until the client waits no longer; None for ever."""


@dataclass(frozen=True, slots=True)
class Call:
    """The caller of a call."""

    #: As the broker knows the client.
    client_id: str
    #: Of topics and groups that name none themselves.
    namespace: str
    language: str
    version: str
    #: "" if no key is asked for.
    access_key: str
    peer: str

    def producer_group(self, topic: str) -> str:
        """The group by which the broker knows the client's half messages: the topic, because SDKs have no group."""
        return group_of_key(topic, self.access_key)


class Callers:
    """Reads the metadata of calls, for one front."""

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys

    def caller(self, context: CallContext) -> Call:
        """The caller of a call.

        Raises CallRefused without a client id, and SignatureInvalid if keys are required and the call is not signed.
        """
        metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        client_id = metadata.get(_CLIENT_ID, "")
        if not client_id:
            raise CallRefused(Code.CLIENT_ID_REQUIRED, f"the metadata lack {_CLIENT_ID}")
        if len(client_id) > _MOST_CHARACTERS or not client_id.isprintable():
            reason = f"{_CLIENT_ID} is longer than {_MOST_CHARACTERS} characters, or holds control characters"
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
    """Whether a text has its right signature: HMAC with SHA-1 in hexadecimal digits of either case."""
    right = hmac.digest(secret.encode(), text.encode(), "sha1").hex()
    return hmac.compare_digest(right.encode(), signature.lower().encode())


def address_of(peer: str) -> str:
    """`address:port` of a peer as gRPC names it: ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711."""
    kind, _, address = peer.partition(":")
    if kind == "ipv4":
        return address
    is_own = kind == "ipv6" and address.startswith("%5B::1%5D")
    return f"127.0.0.1:{address.rpartition(':')[2]}" if is_own else "0.0.0.0:0"
