"""The coordinator as a process: one task group for the core's driver, the server and the metrics.

If any of them fails the process ends, loudly: a server that answers without a core behind it
would be worse than none.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import structlog

from unicorn_mgr import messages
from unicorn_mgr.coordinator.authority import Authority
from unicorn_mgr.coordinator.clients import Clients
from unicorn_mgr.coordinator.driver import Driver
from unicorn_mgr.coordinator.logbook import LogBook
from unicorn_mgr.coordinator.metrics import MetricsServer, serve_metrics
from unicorn_mgr.coordinator.planning import Planner
from unicorn_mgr.coordinator.protocol import OneProtocol, answers, converses, streams
from unicorn_mgr.coordinator.sessions import Agents
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.store import Store
from unicorn_mgr.effects.coordinator import ObserveSet
from unicorn_mgr.planner.problem import Policy
from unicorn_mgr.tls import CredentialsError, is_loopback, server_credentials

MESSAGE_BYTES_MAX = 72 << 20
STOP_SECONDS = 1.0

log = structlog.get_logger()


class ServiceError(Exception):
    """The coordinator can't start, or has to stop.  The message is one line and names the fix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceConfig:
    """Where a coordinator lives."""

    listen: str
    """HOST:PORT for agents and clients; port 0 takes a free one."""
    data: Path
    """Its journal; one directory per cluster."""
    metrics_listen: str = "127.0.0.1:0"
    """HOST:PORT for Prometheus; empty: none."""
    tls: Path | None = None
    """Folder with ca.pem, cert.pem, key.pem; needed off loopback."""
    drills: bool = False
    """Faults may be injected."""
    observe: bool = False
    """Begin in observe mode."""
    settings: Settings = field(default_factory=Settings)
    policy: Policy | None = None
    """Says at once who gets what; None: the planner does, in a process of its own."""


async def run(config: ServiceConfig, ready: Callable[[str, str], None] = lambda _a, _m: None) -> None:
    """Serve until told to stop.  `ready` gets the addresses of the service and of the metrics."""
    if config.tls is None and not is_loopback(config.listen):
        raise ServiceError(f"listen: {config.listen}: without --tls only loopback is served; give --tls FOLDER")
    # Ports first: a start that fails for one changes nothing in the journal.
    server = grpc.aio.server(options=_OPTIONS, interceptors=(OneProtocol(),))
    address = _bind(server, config)
    metrics = _listen_for_metrics(config.metrics_listen) if config.metrics_listen else None
    try:
        store = Store(config.data)
        try:
            await _serve(config, store, server, address, metrics, ready)
        finally:
            store.close()
    finally:
        await server.stop(None)
        if metrics is not None:
            metrics.close()


async def _serve(
    config: ServiceConfig,
    store: Store,
    server: grpc.aio.Server,
    address: str,
    metrics: MetricsServer | None,
    ready: Callable[[str, str], None],
) -> None:
    agents: Agents

    def send(node: str, body: messages.ToAgent) -> None:
        agents.send(node, body)

    planner = Planner(config.settings.plan_seconds) if config.policy is None else None
    driver = Driver(store, config.settings, config.policy, send, planner)
    driver.recover()
    logs = LogBook()
    authority = Authority(secured=config.tls is not None)
    agents = Agents(driver, logs, authority)
    if metrics is not None:
        metrics.show(driver)
    clients = Clients(driver, agents, logs, authority, metrics.address if metrics else "", config.drills)
    server.add_generic_rpc_handlers((_agent_service(agents), _client_service(clients)))
    reason = ""
    try:
        async with asyncio.TaskGroup() as tasks:
            driving = tasks.create_task(driver.run())
            await server.start()
            log.info("coordinator serves", address=address, cluster=store.cluster, term=driver.core.state.term)
            ready(address, metrics.address if metrics else "")
            if config.observe and not driver.core.state.observe:
                await driver.submit(ObserveSet(f"start of term {driver.core.state.term}", "", observe=True))
            reason = await _until_stopped(agents, driving)
            await server.stop(STOP_SECONDS)
            raise _Stopped(reason)
    except* _Stopped as stopped:
        reason = str(stopped.exceptions[0])
    if reason:
        raise ServiceError(reason)


class _Stopped(Exception):
    """Ends the task group."""


async def _until_stopped(agents: Agents, driving: asyncio.Task[None]) -> str:
    """Wait for a signal (empty reason) or for proof that this is not the newest coordinator."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    waits: set[asyncio.Future[Any]] = {stopped, agents.outdated, driving}
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if agents.outdated in done:
        return (
            f"data: {agents.outdated.result()}: this data directory is older than the cluster; "
            "start with the newest one"
        )
    return ""


def _bind(server: grpc.aio.Server, config: ServiceConfig) -> str:
    host = config.listen.rpartition(":")[0]
    try:
        if config.tls is None:
            port = server.add_insecure_port(config.listen)
        else:
            port = server.add_secure_port(config.listen, server_credentials(config.tls))
    except CredentialsError as wrong:
        raise ServiceError(str(wrong)) from wrong
    except RuntimeError as failed:
        raise ServiceError(
            f"listen: {config.listen}: the port is in use or can't be had; choose another --listen"
        ) from failed
    return f"{host}:{port}"


def _listen_for_metrics(listen: str) -> MetricsServer:
    try:
        return serve_metrics(listen)
    except OSError as failed:
        raise ServiceError(f"metrics: {listen}: {failed.strerror}; choose another --metrics") from failed


_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def _agent_service(agents: Agents) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "unicorn.v1.AgentService",
        {
            "Attach": converses(agents.attach, messages.AgentMessage),
            "FetchSnapshot": streams(agents.fetch_snapshot, messages.SnapshotRequest),
        },
    )


def _client_service(clients: Clients) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "unicorn.v1.ClientService",
        {
            "Submit": answers(clients.submit, messages.SubmitJob),
            "Command": answers(clients.command, messages.OperatorCommand),
            "Look": answers(clients.look, messages.LookRequest),
            "WhatIf": answers(clients.what_if, messages.WhatIfRequest),
            "FindIncident": answers(clients.find_incident, messages.IncidentRequest),
            "FollowJob": streams(clients.follow_job, messages.FollowJobRequest),
            "FollowEvents": streams(clients.follow_events, messages.FollowEventsRequest),
        },
    )
