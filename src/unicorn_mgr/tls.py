"""Mutual TLS: roles, and credentials from a folder of certificates.

Off loopback nothing is believed that is not authenticated.  A folder holds `ca.pem`, and
`cert.pem` and `key.pem` of its owner; the certificate's organizational unit is the role.
"""

from __future__ import annotations

import enum
import ipaddress
from pathlib import Path

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
    ca, cert, key = _read(folder)
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """The same for a caller."""
    ca, cert, key = _read(folder)
    return grpc.ssl_channel_credentials(ca, key, cert)


def _read(folder: Path) -> tuple[bytes, ...]:
    found = []
    for name in FILES:
        try:
            found.append((folder / name).read_bytes())
        except OSError as failed:
            raise CredentialsError(
                f"tls: {folder / name}: {failed.strerror}; make certificates with `unicorn certs`"
            ) from failed
    return tuple(found)
