"""TLS certificates for a federation that has none: an authority, and a server certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
YEARS = 10
FILES = ("ca.crt", "ca.key", "server.crt", "server.key")
"""The authority's certificate, which nodes need, and its key, which signs; then the server's."""


def make_certificates(folder: Path, hosts: Sequence[str] = LOOPBACK, force: bool = False) -> None:
    """Write the four FILES.

    Args:
        folder: where the files go.
        hosts: names and addresses under which nodes reach the server.
        force: replace files that exist; every node then needs the new ca.crt.

    Raises:
        ConfigError: if a host is no name, files exist, or the folder cannot be written to.
    """
    names = [_alternative(host) for host in hosts]
    if not names:
        raise ConfigError("certificates: name at least one host under which nodes reach the server")
    there = [name for name in FILES if (folder / name).exists()]
    if there and not force:
        raise ConfigError(
            f"{folder / there[0]}: exists already; "
            "use --force to replace the certificates in that folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in zip(FILES, _make(names, hosts[0]), strict=True):
            write_atomically(folder / name, content, mode=0o600 if name.endswith(".key") else 0o644)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot write certificates there ({error.strerror})"
        ) from error


def _make(names: Sequence[x509.GeneralName], host: str) -> tuple[bytes, ...]:
    """Return the contents of FILES."""
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "privfed federation authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    known = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    root = (
        _draft(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(known, critical=False)
        .sign(authority, hashes.SHA384())
    )
    leaf = (
        _draft(subject, issuer, server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority, hashes.SHA384())
    )
    return (
        root.public_bytes(Encoding.PEM),
        _pem(authority),
        leaf.public_bytes(Encoding.PEM),
        _pem(server),
    )


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """Return a certificate without extensions, valid from yesterday as clocks differ."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    """Return the form in which a certificate names an address or a host."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not all(
        0 < len(label) < 64 and label.replace("-", "").isalnum() and label.isascii()
        for label in labels
    ):
        raise ConfigError(
            f"certificates: {host!r} is neither a host name nor an address; "
            "leave out scheme and port"
        )
    return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_node_key(path: Path) -> None:
    """Write a SuperNode's key as `ssh-keygen -t ecdsa -b 384 -N "" -f PATH` does.

    Args:
        path: file of the private key; the public key to register is written to PATH.pub.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(path, private, mode=0o600)
    write_atomically(path.with_name(f"{path.name}.pub"), public + b"\n")
