"""Mutual TLS: roles, and credentials from a folder of certificates.

Off loopback nothing is believed that is not authenticated.  A folder holds `ca.pem`, and
`cert.pem` and `key.pem` of its owner; the certificate's organizational unit is the role.
"""

from __future__ import annotations

import datetime
import enum
import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

FILES = ("ca.pem", "cert.pem", "key.pem")


class Role(enum.StrEnum):
    """What a certificate entitles to; a role includes those after it, `agent` only itself."""

    AGENT = "agent"
    OPERATOR = "operator"
    SUBMITTER = "submitter"
    VIEWER = "viewer"


class CredentialsError(Exception):
    """The folder does not hold what is needed.  The message names the file."""


def is_loopback(address: str) -> bool:
    """HOST:PORT is reachable from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """From ca.pem, cert.pem and key.pem in `folder`.  Callers must show a certificate of the same authority."""
    ca, cert, key = _checked(folder)
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """The same for a caller."""
    ca, cert, key = _checked(folder)
    return grpc.ssl_channel_credentials(ca, key, cert)


def agent_context(folder: Path, server: bool) -> ssl.SSLContext:
    """For what agents send each other: both show a certificate of the same authority, whose role the other checks."""
    _checked(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # all agents have the same certificate: it is the role that is believed
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def role_of(certificate: Mapping[str, Any]) -> str:
    """What the peer's certificate entitles to; empty: nothing."""
    names = (name for names in certificate.get("subject", ()) for name in names)
    return next((str(value) for kind, value in names if kind == "organizationalUnitName"), "")


def _checked(folder: Path) -> tuple[bytes, bytes, bytes]:
    """What gRPC would only find out, and not say, when somebody connects."""
    from cryptography import x509  # noqa: PLC0415 - on loopback nobody needs it, and it takes long to read
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    ca, cert, key = _read(folder)
    try:
        x509.load_pem_x509_certificates(ca)
    except ValueError as wrong:
        raise _unusable(folder / "ca.pem", "it is not a certificate in PEM form") from wrong
    try:
        mine = x509.load_pem_x509_certificate(cert)
    except ValueError as wrong:
        raise _unusable(folder / "cert.pem", "it is not a certificate in PEM form") from wrong
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as wrong:
        raise _unusable(folder / "key.pem", "it is not a private key in PEM form without a password") from wrong
    if private.public_key() != mine.public_key():
        raise _unusable(folder / "key.pem", "it is not the key of cert.pem")
    if mine.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise _unusable(folder / "cert.pem", f"it has expired on {mine.not_valid_after_utc:%Y-%m-%d}")
    return ca, cert, key


def _unusable(path: Path, why: str) -> CredentialsError:
    return CredentialsError(f"tls: {path}: {why}; make certificates with `unicorn certs`")


def _read(folder: Path) -> tuple[bytes, bytes, bytes]:
    found = []
    for name in FILES:
        try:
            found.append((folder / name).read_bytes())
        except OSError as failed:
            raise _unusable(folder / name, str(failed.strerror)) from failed
    return found[0], found[1], found[2]
