"""The certificate of a run, for connections between hosts.

The driver creates it at the start, self-signed, and every process of the run accepts only this one.
It names no host: it proves that a server belongs to the run, wherever it listens. The private key
reaches the nodes the same way as the run's secret.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from datetime import datetime

from millstream.errors import ConfigError

NAME = "millstream"
_FROM = datetime(2000, 1, 1)
_FOREVER = datetime(9999, 12, 31, 23, 59, 59)  # in X.509: no expiration date


@dataclass(frozen=True)
class Identity:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def check_available() -> None:
    """Raise if certificates cannot be created here."""
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError(
            "listen= encrypts connections between hosts, which needs the package cryptography in "
            "the driver: pip install 'millstream[tls]'; on a network that you trust, "
            "encrypt=False needs no package"
        )


def new_identity() -> Identity:
    """Create the certificate of one run."""
    check_available()
    from cryptography import x509  # needs the extra
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_FOREVER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate: bytes = made.public_bytes(serialization.Encoding.PEM)
    private: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Identity(certificate, private)
