"""The certificate of a front for which no certificate is configured.

Four of seven SDKs use TLS by default, and accept any certificate.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAYS: Final = timedelta(days=3_650)
_BEFORE: Final = timedelta(days=1)


class Certificate(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def self_signed(host: str) -> Certificate:
    """A self-signed certificate for a name or an address. It protects only against eavesdroppers."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(host), x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(certificate.public_bytes(Encoding.PEM), private)


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(host))
    return x509.DNSName(host)
