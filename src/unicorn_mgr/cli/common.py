"""What several commands need: errors, addresses, logging, a line to the coordinator."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

import grpc
import structlog
import typer

from unicorn_mgr import messages
from unicorn_mgr.codec import decoder, encode
from unicorn_mgr.coordinator.protocol import SPOKEN
from unicorn_mgr.model import PROTOCOL, SOCKET_PATH_BYTES_MAX
from unicorn_mgr.tls import CredentialsError, channel_credentials, is_loopback

CALL_SECONDS_MAX = 10.0
BACKLOG_MAX = 1_000
"""Items of a stream that wait to be shown; the sender waits then."""

BACKLOG_SECONDS = 0.01
COORDINATOR = "UNICORN_COORDINATOR"
TLS = "UNICORN_TLS"

R = TypeVar("R")

CoordinatorOption = typer.Option(
    None, "--coordinator", metavar="HOST:PORT", envvar=COORDINATOR, help="The coordinator's address."
)
TlsOption = typer.Option(
    None,
    "--tls",
    envvar=TLS,
    metavar="FOLDER",
    help="Folder with ca.pem, cert.pem and key.pem; needed off loopback.",
)
JsonOption = typer.Option(False, "--json", help="Print JSON with stable keys.")


EXIT_INTERRUPTED = 130


class Terminated(KeyboardInterrupt):
    """Asked to end by a signal other than Ctrl-C's: by a program, not by a person."""


@contextlib.contextmanager
def interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """These signals end the block as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    with _handling(end, signals):
        yield


@contextlib.contextmanager
def ignoring(*signals: signal.Signals) -> Iterator[None]:
    """The block runs to its end, whatever signals come."""
    with _handling(signal.SIG_IGN, signals):
        yield


@contextlib.contextmanager
def _handling(handler: Any, signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may; whoever runs us in another handles signals itself
        return
    before = [(number, signal.signal(number, handler)) for number in signals]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


class Problem(Exception):
    """One line for the user: what is wrong, and what to do."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def host_and_port(field: str, text: str) -> str:
    """Check HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise Problem(f"{field}: {text}: want HOST:PORT, e.g. 127.0.0.1:7077")
    return text


def set_up_logging(json: bool, verbose: bool = False) -> None:
    """One event a line on stderr: key-value for people, JSON in a service."""
    renderer: Any = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def runtime_folder() -> Path:
    """Where sockets live: short, private, and gone after a restart of the machine."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    # Under /tmp its name can be guessed: so whose it is, is looked at below.
    path = Path(base) / "unicorn" if base and len(base) < 40 else Path(f"/tmp/unicorn-{os.getuid()}")  # noqa: S108 - see above
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise Problem(f"runtime: {path}: it belongs to somebody else; set XDG_RUNTIME_DIR to a folder of your own")
    path.chmod(0o700)
    return path


def agent_socket(data: Path, node: str) -> Path:
    """Where an agent's workers find it: beside its data; if that is too long a path, in a folder of this data alone."""
    name, data = f"{node}.sock", data.resolve()
    beside = data / "run" / name
    if len(os.fsencode(beside)) <= SOCKET_PATH_BYTES_MAX:
        return beside
    return runtime_folder() / "agents" / hashlib.sha256(os.fsencode(data)).hexdigest()[:16] / name


def state_folder() -> Path:
    """Where journals and logs live unless --data says otherwise."""
    if os.getuid() == 0:
        return Path("/var/lib/unicorn")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "unicorn"


_METADATA = ((SPOKEN, str(PROTOCOL)),)
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""The coordinator's own words follow: field, value, fix."""


class Client:
    """A blocking line to the coordinator."""

    def __init__(self, coordinator: str | None, tls: Path | None) -> None:
        if not coordinator:
            raise Problem(f"coordinator: not given: say --coordinator HOST:PORT or set {COORDINATOR}")
        self.coordinator = host_and_port("coordinator", coordinator)
        if tls is None and not is_loopback(coordinator):
            fix = "off loopback a coordinator is only reached with --tls FOLDER"
            raise Problem(f"coordinator: {coordinator}: {fix}")
        options = (
            ("grpc.enable_http_proxy", 0),  # the cluster's own network, whatever http_proxy says
            ("grpc.max_receive_message_length", 72 << 20),
            ("grpc.max_send_message_length", 72 << 20),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
        )
        try:
            if tls is not None:
                self._channel = grpc.secure_channel(coordinator, channel_credentials(tls), options)
            else:
                self._channel = grpc.insecure_channel(coordinator, options)
        except CredentialsError as wrong:
            raise Problem(str(wrong)) from wrong
        self._tls = tls
        self._reached = False

    def call(self, name: str, asked: object, answer: type[R], seconds: float = CALL_SECONDS_MAX) -> R:
        """A unary call.  Raises `Problem`."""
        unary: grpc.UnaryUnaryMultiCallable[bytes, R] = self._channel.unary_unary(
            f"/unicorn.v1.ClientService/{name}",
            request_serializer=None,
            response_deserializer=decoder(answer),
        )
        try:
            found = unary(_encoded(asked), timeout=seconds, wait_for_ready=False, metadata=_METADATA)
        except grpc.RpcError as failed:
            raise self.problem(failed) from None
        self._reached = True
        return found

    def follow(self, name: str, asked: object, item: type[R]) -> Iterator[R]:
        """A stream of answers.  Raises `Problem`."""
        stream: grpc.UnaryStreamMultiCallable[bytes, R] = self._channel.unary_stream(
            f"/unicorn.v1.ClientService/{name}",
            request_serializer=None,
            response_deserializer=decoder(item),
        )
        call = stream(_encoded(asked), metadata=_METADATA)
        pump = _Pump(call)
        try:
            while (found := pump.items.get()) is not None:
                if isinstance(found, grpc.RpcError):
                    raise self.problem(found) from None
                self._reached = True
                yield found
        finally:
            pump.left = True
            call.cancel()

    def look(self) -> messages.ClusterView:
        """Everything at this moment."""
        return self.call("Look", messages.LookRequest(), messages.ClusterView)

    def problem(self, failed: grpc.RpcError) -> Problem:
        """A failed call as one line."""
        code, text = failed.code(), _plain(failed.details() or "")
        if code is grpc.StatusCode.NOT_FOUND:
            return NotThere(text)
        if code in _REFUSALS:
            return Problem(text)
        if code is grpc.StatusCode.UNAVAILABLE and "handshake failed" in text.lower():
            why = "its authority is another one, or the coordinator's certificate is not for that name"
            return Problem(f"tls: {self._tls}: it does not fit to {self.coordinator}: {why}")
        if code is grpc.StatusCode.UNAVAILABLE:
            return Unreachable(f"coordinator: {self.coordinator}: {self._why_unavailable(text)}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Problem(f"coordinator: {self.coordinator}: what serves there is no coordinator, or another version")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unreachable(f"coordinator: {self.coordinator}: no answer in {CALL_SECONDS_MAX:.0f} s")
        return Problem(f"coordinator: {self.coordinator}: {code.name.lower()}: {text}", 1)

    def _why_unavailable(self, text: str) -> str:
        if self._tls is None and not self._reached and "socket closed" in text.lower():
            return "it hung up; does it want --tls FOLDER?"
        return "nobody answers there; is it running?"


class _Pump:
    """Takes a stream's items in a thread of its own.

    A KeyboardInterrupt inside gRPC can leave a lock of its channel held for ever (a Condition
    may be interrupted between its release and the exit of its block), and then nothing that is
    asked later is answered.  Waiting at this queue can be interrupted anywhere.
    """

    def __init__(self, call: Any) -> None:
        self.items: SimpleQueue[Any] = SimpleQueue()
        """What came, then the error that ended it, or None."""
        self.left = False
        self._call = call
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for item in self._call:
                self.items.put(item)
                while self.items.qsize() >= BACKLOG_MAX and not self.left:
                    time.sleep(BACKLOG_SECONDS)
            self.items.put(None)
        except grpc.RpcError as failed:
            self.items.put(failed)


class NotThere(Problem):
    """What was named does not exist, or has ended."""


class Unreachable(Problem):
    """The coordinator did not answer; it may later."""


def _encoded(asked: object) -> bytes:
    """Not left to gRPC, which would only say that it could not be done."""
    try:
        return encode(asked)
    except UnicodeEncodeError as wrong:
        raise Problem(f"{readable(wrong.object)}: not UTF-8") from None


def readable(text: str) -> str:
    """Bytes of the command line that are no UTF-8 as question marks."""
    return text.encode(errors="replace").decode()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
