"""The server's own certificate: one that was given, or one made here, signed by itself, for the names in ORIGINS."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 397  # the longest that browsers accept of a server
RENEW_DAYS = 30


class BadCertificate(Exception):
    """The text names the file and the remedy."""


@dataclass(frozen=True)
class Files:
    certificate: Path
    key: Path


def checked(files: Files) -> Files:
    """`files` again when OpenSSL takes them as a pair. Raises BadCertificate."""
    for name, path in (("TLS_CERTIFICATE", files.certificate), ("TLS_KEY", files.key)):
        try:
            path.read_bytes()
        except OSError as problem:
            raise BadCertificate(f"{name}={path} can't be read: {problem.strerror}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password=_no_password)
    except (ssl.SSLError, ValueError) as problem:
        raise BadCertificate(
            f"TLS_CERTIFICATE={files.certificate} and TLS_KEY={files.key} are no pair that OpenSSL takes "
            f"({problem}). Both are PEM, the key without a passphrase, the certificate with its chain."
        ) from None
    return files


def _no_password() -> str:
    raise ValueError("the key has a passphrase")


def fingerprint(path: Path) -> str:
    """SHA-256 of the first certificate in a PEM file, as browsers show it (AB:CD:…)."""
    digest = x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())
    return ":".join(f"{byte:02X}" for byte in digest)


def self_signed(folder: Path, origins: Iterable[str]) -> Files:
    """The certificate that lies in `folder`, made anew when it is missing, soon over, or lacks a name of `origins`."""
    names = sorted({urlsplit(origin).hostname or "" for origin in origins} - {""})
    files = Files(folder / "certificate.pem", folder / "key.pem")
    if not _still_good(files, names):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(files, names)
    return checked(files)


def _still_good(files: Files, names: list[str]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        checked(files)
        there = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound, BadCertificate):
        return False
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    covered = {name.value if isinstance(name, x509.DNSName) else str(name.value) for name in there}
    return left > datetime.timedelta(days=RENEW_DAYS) and set(names) <= covered


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())


def _make(files: Files, names: list[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sparkweb, signed by itself")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of browsers go wrong too
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _replace(files.key, pem, 0o600)
    _replace(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _replace(path: Path, content: bytes, mode: int) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)
