"""Who may do what: roles in client certificates.

Off loopback every connection is mutual TLS, and the certificate's organizational unit says
the role.  On loopback without TLS everybody on the machine is trusted with everything.
"""

from __future__ import annotations

from typing import Any

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from unicorn_mgr.tls import Role

_INCLUDES: dict[str, frozenset[Role]] = {
    Role.AGENT: frozenset({Role.AGENT}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.SUBMITTER, Role.VIEWER}),
    Role.SUBMITTER: frozenset({Role.SUBMITTER, Role.VIEWER}),
    Role.VIEWER: frozenset({Role.VIEWER}),
}


class Authority:
    """Checks callers.  `secured` is False only for a server that listens on loopback alone."""

    def __init__(self, secured: bool) -> None:
        self._secured = secured

    async def require(self, context: grpc.aio.ServicerContext[Any, Any], role: Role) -> None:
        """End the call unless the caller has the role."""
        if not self._secured:
            return
        found = _role_of(context.auth_context())
        if role not in _INCLUDES.get(found, frozenset()):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"role: {found or 'none'}: this call needs a certificate of {role}",
            )


def _role_of(auth: Any) -> str:
    for pem in auth.get("x509_pem_cert", ()):
        subject = x509.load_pem_x509_certificate(pem).subject
        units = subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        if units:
            return str(units[0].value)
    return ""
