"""From what a failure looks like to its cause, its severity and the method that found it.

One table (after Unicron, section 3: error status -> detection method -> severity).  The
first row that fits counts, so special rows stand above general ones.  What no row knows is
SEV2, unless it speaks of a device or a host: then it is SEV1.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from unicorn_mgr.messages import Exited, Raised
from unicorn_mgr.model import Severity

NODE_HEALTH = "node health monitoring"
SUPERVISION = "process supervision"
PROPAGATION = "exception propagation"
STATISTICS = "online statistical monitoring"

SEV1, SEV2, SEV3 = Severity.SEV1, Severity.SEV2, Severity.SEV3


@dataclass(frozen=True, slots=True)
class Finding:
    """What the table says of a failure."""

    cause: str
    severity: Severity
    method: str


@dataclass(frozen=True, slots=True)
class _Row:
    pattern: re.Pattern[str]
    """Looked for in "Type: message" of an exception, in any case."""
    cause: str
    severity: Severity
    method: str = PROPAGATION


def _row(pattern: str, cause: str, severity: Severity, method: str = PROPAGATION) -> _Row:
    return _Row(re.compile(pattern, re.IGNORECASE), cause, severity, method)


EXCEPTIONS: tuple[_Row, ...] = (
    _row(r"uncorrectable ecc|double.bit ecc|\becc error|row.?remap", "ecc_error", SEV1),
    _row(r"nvlink", "nvlink_error", SEV1),
    _row(r"invalid dma mapping|dma mapping", "invalid_dma_mapping", SEV1),
    _row(
        r"driver (shutting down|error|version)|nvml.*(driver|not loaded)|fallen off the bus|gpu is lost|\bxid\b",
        "gpu_driver_error",
        SEV1,
    ),
    _row(r"illegal memory access", "illegal_memory_access", SEV2),
    _row(r"cuda out of memory|outofmemoryerror|memoryerror|cannot allocate memory", "out_of_memory", SEV2),
    _row(r"nccl.*time(d)?.?out|watchdog.*time(d)?.?out", "nccl_timeout", SEV3, STATISTICS),
    _row(r"link (flapping|down)|port (flapping|down)", "link_flapping", SEV3, STATISTICS),
    _row(r"connection ?refused", "connection_refused", SEV3, SUPERVISION),
    _row(r"connection ?(reset|closed)|broken ?pipe", "connection_reset", SEV3, SUPERVISION),
    _row(
        r"nccl (system|remote|internal|unhandled)|remote process exited|can't reach each other|network is unreachable"
        r"|no route to host|ibv_|infiniband",
        "network_error",
        SEV3,
    ),
    _row(r"cuda error|cublas|cudnn|device-side assert", "cuda_error", SEV2),
    _row(r"no space left on device|read-only file system|input/output error", "host_error", SEV1),
)

SIGNALS: dict[int, tuple[str, Severity]] = {
    signal.SIGKILL: ("process_killed", SEV2),
    signal.SIGSEGV: ("segmentation_fault", SEV2),
    signal.SIGBUS: ("bus_error", SEV2),
    signal.SIGABRT: ("aborted", SEV2),
    signal.SIGTERM: ("process_terminated", SEV2),
}

LOST_CONNECTION = Finding("lost_connection", SEV1, NODE_HEALTH)
TASK_HANG = Finding("task_hang", SEV2, STATISTICS)
STOPPED = Finding("process_stopped", SEV2, STATISTICS)
LINK = Finding("link_stalled", SEV3, STATISTICS)
COMMUNICATION = Finding("communication_error", SEV3, PROPAGATION)
UNREACHABLE = Finding("peers_unreachable", SEV3, PROPAGATION)
LEFT_EARLY = Finding("left_the_loop_early", SEV2, SUPERVISION)
CHECKSUMS = Finding("checksum_mismatch", SEV2, STATISTICS)
OTHER_CODE = Finding("different_code", SEV2, PROPAGATION)
UNREADABLE = Finding("checkpoint_unreadable", SEV2, PROPAGATION)
NOT_STARTED = Finding("not_started", SEV2, SUPERVISION)

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n"
"""As Python prints it."""

_DEVICE_OR_HOST = re.compile(r"\b(gpu|device|pcie|hardware|disk|host)\b.*\b(error|fail|fault|lost)", re.IGNORECASE)


def of_exception(raised: Raised) -> Finding:
    """The finding for an exception that ended a worker, or a collective."""
    text = f"{raised.type}: {raised.message}"
    for row in EXCEPTIONS:
        if row.pattern.search(text):
            return Finding(row.cause, row.severity, row.method)
    if _DEVICE_OR_HOST.search(text):
        return Finding("device_or_host_error", SEV1, PROPAGATION)
    return Finding("exception", SEV2, PROPAGATION)


def of_exit(exited: Exited) -> Finding:
    """The finding for a process that has ended when it should not have."""
    if exited.raised is not None and exited.raised.type == "NotStarted":
        return NOT_STARTED
    if exited.raised is not None:
        return of_exception(exited.raised)
    if exited.code == 0:
        return LEFT_EARLY
    if exited.code < 0:
        cause, severity = SIGNALS.get(-exited.code, ("killed_by_signal", SEV2))
        return Finding(cause, severity, SUPERVISION)
    return Finding("exited_abnormally", SEV2, SUPERVISION)


def of_link(raised: Raised | None) -> bool:
    """Others could not be reached: mostly because one of them is gone."""
    return raised is not None and of_exception(raised).severity == SEV3


def is_users_fault(cause: str) -> bool:
    """The node has nothing to do with it: trying elsewhere can't help."""
    return cause in {"exception", LEFT_EARLY.cause, NOT_STARTED.cause, OTHER_CODE.cause, "out_of_memory"}


def signature(raised: Raised | None) -> str:
    """Type and place of an exception: equal for the same fault in the code, whatever the numbers in its message."""
    if raised is None:
        return ""
    origin = raised.traceback.partition(_CAUSED)[0]  # what it was raised from comes first
    places = [line.strip() for line in origin.splitlines() if line.lstrip().startswith('File "')]
    return f"{raised.type} at {places[-1] if places else '?'}"


def evidence_of(exited: Exited) -> str:
    """What is known of an exit, for people."""
    parts = []
    if exited.code < 0:
        try:
            parts.append(f"killed by {signal.Signals(-exited.code).name}")
        except ValueError:
            parts.append(f"killed by signal {-exited.code}")
    else:
        parts.append(f"exit code {exited.code}")
    if exited.last is not None:
        open_batch = f", micro-batch {exited.last.micro_batch}" if exited.last.micro_batch >= 0 else ""
        parts.append(f"last seen in step {exited.last.step}{open_batch}")
    if exited.raised is not None:
        parts.append(exited.raised.traceback.strip() or f"{exited.raised.type}: {exited.raised.message}")
    if exited.stacks:
        parts.append(exited.stacks.strip())
    return "\n".join(parts)
