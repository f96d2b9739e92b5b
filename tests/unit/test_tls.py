"""What is served without certificates is reachable from this machine alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_mgr.tls import CredentialsError, channel_credentials, is_loopback, server_credentials


@pytest.mark.parametrize("address", ["127.0.0.1:7077", "localhost:7077", "[::1]:7077", "127.8.9.10:0"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7077",
        "[::]:7077",
        "10.0.0.1:7077",
        "192.168.0.1:7077",
        "coordinator:7077",
        "localhost.example.com:7077",
        "127.0.0.1.example.com:7077",
        "[fe80::1]:7077",
        ":7077",
        "127.0.0.1",
        "",
    ],
)
def test_everything_else_is_not_loopback(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize("read", [server_credentials, channel_credentials])
def test_a_missing_certificate_is_named_with_the_fix(read: object, tmp_path: Path) -> None:
    assert callable(read)
    (tmp_path / "ca.pem").write_text("x")
    with pytest.raises(CredentialsError) as missing:
        read(tmp_path)
    says = str(missing.value)
    assert says.startswith(f"tls: {tmp_path / 'cert.pem'}: No such file or directory; make certificates with")
    assert "\n" not in says
