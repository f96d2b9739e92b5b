"""`unicorn certs`: an authority of the cluster's own, and a folder of certificates per role."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unicorn_mgr.cli.common import Problem
from unicorn_mgr.tls import Role

DAYS_MAX = 3650
_ONE_DAY = datetime.timedelta(days=1)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def certs(
        folder: Path = typer.Argument(..., help="Where to put them: one folder a role, and the authority's own."),
        host: list[str] = typer.Option(..., "--host", help="A name or address by which the coordinator is reached."),
        days: int = typer.Option(365, "--days", help="How long they are good for."),
    ) -> None:
        """Make certificates for mutual TLS: coordinator, agent, operator, submitter, viewer.

        Copy each folder to whoever has the role, and keep authority/ to yourself.  Run again
        with the same folder it renews the certificates under the same authority.
        """
        if not 1 <= days <= DAYS_MAX:
            raise Problem(f"days: {days}: want 1 to {DAYS_MAX}")
        try:
            make(folder, host, datetime.timedelta(days=days))
        except OSError as failed:
            raise Problem(f"folder: {failed.filename}: {failed.strerror}") from failed
        typer.echo(f"certificates for {', '.join(host)} are in {folder}; {folder}/authority stays secret")


def make(folder: Path, hosts: list[str], lifetime: datetime.timedelta) -> None:
    """Write the authority, if there is none yet, and a folder for each role."""
    authority, key = _authority(folder / "authority", lifetime * 10)
    for role in ("coordinator", *Role):
        _issue(folder / role, str(role), hosts if role == "coordinator" else [], authority, key, lifetime)


def _authority(folder: Path, lifetime: datetime.timedelta) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if (folder / "key.pem").exists():
        key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Problem(f"folder: {folder}: its key is not one that this command has made")
        return x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("unicorn authority", "authority")
    certificate = (
        _builder(name, name, key, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder, "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder, "key.pem", _private(key))
    return certificate, key


def _issue(
    folder: Path,
    role: str,
    hosts: list[str],
    authority: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    lifetime: datetime.timedelta,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role == Role.AGENT:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)  # agents call each other
    builder = (
        _builder(_name(f"unicorn {role}", role), authority.subject, key, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False)
    certificate = builder.sign(signer, hashes.SHA256())
    _write(folder, "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
    _write(folder, "cert.pem", certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder, "key.pem", _private(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _ONE_DAY)
        .not_valid_after(now + lifetime)
    )


def _name(common: str, role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        ]
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
