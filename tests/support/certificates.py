"""A certificate authority for one test, and certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE = datetime.timedelta(hours=12)
NOW = datetime.timedelta()
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
    key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
    decipher_only=False,
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Writes PEM files to a folder; `ca` is its own certificate, signed by `above` if given."""

    def __init__(
        self, folder: Path, name: str = "authority", above: Authority | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        signer = above or self
        builder = (
            signer._builder(name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(_pem(builder.sign(signer._key, hashes.SHA256())))

    def pair(self, name: str, later: datetime.timedelta = NOW, host: str = "") -> Pair:
        """A certificate for loopback, or only for `host`, under this name.

        A second one of the same name replaces the files. `later` shifts its period of validity.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        hosts = [x509.DNSName(host)] if host else loopback
        builder = self._builder(name, key, later).add_extension(
            x509.SubjectAlternativeName(hosts), critical=False
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(
        self, name: str, key: ec.EllipticCurvePrivateKey, later: datetime.timedelta = NOW
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC) + later
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - LIFE)
            .not_valid_after(now + LIFE)
            # Python 3.13 does not trust certificates without these identifiers.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
