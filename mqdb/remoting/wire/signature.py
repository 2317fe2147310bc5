"""Signatures of requests: only an owner of an access key's secret can sign.

The signed bytes are the values of all fields except the signature itself, ordered by name, followed by the body. Both
versions of RocketMQ's clients sign this way. RocketMQ: AclClientRPCHook, AclUtils.combineRequestContent, AclSigner.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

#: Fields of a request: the access key, the signature, and a token that is only used on the client's side.
ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

#: Clients up to 4.9.3 add this field to code 12 after signing. Source: PlainAccessResource.parse.
_ADDED_LATER: Final = "_UNIQUE_KEY_QUERY"


def sign(secret: bytes | str, fields: Mapping[str, str], body: bytes) -> str:
    """The signature of a request: base64 of an HMAC with SHA-1. A secret given as text is encoded as UTF-8."""
    key = secret.encode() if isinstance(secret, str) else secret
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode()
    return b64encode(hmac.digest(key, content + body, "sha1")).decode("ascii")


def verify(secret: bytes | str, fields: Mapping[str, str], body: bytes) -> bool:
    """Whether the request has a correct signature.

    The time for a wrong signature does not depend on how much of it is correct.
    """
    # As bytes, because compare_digest refuses texts that are not ASCII.
    given = fields.get(SIGNATURE, "").encode()
    if hmac.compare_digest(given, sign(secret, fields, body).encode()):
        return True
    if _ADDED_LATER not in fields:
        return False
    signed = {name: value for name, value in fields.items() if name != _ADDED_LATER}
    return hmac.compare_digest(given, sign(secret, signed, body).encode())
