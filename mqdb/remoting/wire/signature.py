"""Signatures of requests: only an owner of the secret of an access key can sign.

The signed bytes are the values of all fields except the signature itself, in the order of their names, and then the
body. Both versions of RocketMQ's clients sign this way. RocketMQ: AclClientRPCHook, AclUtils.combineRequestContent,
AclSigner.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

#: Fields of a request: whose key it is, the signature, and a token that nothing but the client's side makes use of.
ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

#: Clients up to 4.9.3 add this field of code 12 after they have signed. Source: PlainAccessResource.parse.
_ADDED_LATER: Final = "_UNIQUE_KEY_QUERY"


def sign(secret: bytes | str, fields: Mapping[str, str], body: bytes) -> str:
    """The signature of a request: base64 of an HMAC with SHA-1. A secret that is text is taken as UTF-8."""
    key = secret.encode() if isinstance(secret, str) else secret
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode()
    return b64encode(hmac.digest(key, content + body, "sha1")).decode("ascii")


def verify(secret: bytes | str, fields: Mapping[str, str], body: bytes) -> bool:
    """Whether the request has its right signature. Takes as long for a wrong one, however much of it is right."""
    # As bytes: compare_digest refuses texts that are not ASCII.
    given = fields.get(SIGNATURE, "").encode()
    if hmac.compare_digest(given, sign(secret, fields, body).encode()):
        return True
    if _ADDED_LATER not in fields:
        return False
    signed = {name: value for name, value in fields.items() if name != _ADDED_LATER}
    return hmac.compare_digest(given, sign(secret, signed, body).encode())
