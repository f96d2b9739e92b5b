"""Every error status of the table has its severity and its method; what nobody knows is SEV2."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.triage import (
    NODE_HEALTH,
    PROPAGATION,
    STATISTICS,
    SUPERVISION,
    Finding,
    evidence_of,
    of_exception,
    of_exit,
    signature,
)
from unicorn_mgr.messages import Exited, Raised, Sample
from unicorn_mgr.model import Severity

SEV1, SEV2, SEV3 = Severity.SEV1, Severity.SEV2, Severity.SEV3

EXCEPTIONS = [
    # the exception as it is raised, cause, severity, method
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc_error", SEV1, PROPAGATION),
    ("RuntimeError: row remapping failure on GPU 3", "ecc_error", SEV1, PROPAGATION),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink_error", SEV1, None),
    ("RuntimeError: Invalid DMA mapping", "invalid_dma_mapping", SEV1, PROPAGATION),
    ("RuntimeError: CUDA driver error: unknown error", "gpu_driver_error", SEV1, PROPAGATION),
    ("NVMLError: Driver/library version mismatch: driver version is insufficient", "gpu_driver_error", SEV1, None),
    ("RuntimeError: GPU 0000:3b:00.0 has fallen off the bus", "gpu_driver_error", SEV1, PROPAGATION),
    ("RuntimeError: Xid 79 on PCI:0000:3b:00", "gpu_driver_error", SEV1, PROPAGATION),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal_memory_access", SEV2, PROPAGATION),
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "out_of_memory", SEV2, PROPAGATION),
    ("MemoryError: ", "out_of_memory", SEV2, PROPAGATION),
    ("OSError: [Errno 12] Cannot allocate memory", "out_of_memory", SEV2, PROPAGATION),
    ("DistBackendError: NCCL operation timed out after 600000 ms", "nccl_timeout", SEV3, STATISTICS),
    ("RuntimeError: Watchdog caught collective operation timeout", "nccl_timeout", SEV3, STATISTICS),
    ("RuntimeError: mlx5_0: link flapping", "link_flapping", SEV3, STATISTICS),
    ("ConnectionRefusedError: [Errno 111] Connection refused", "connection_refused", SEV3, SUPERVISION),
    ("ConnectionResetError: [Errno 104] Connection reset by peer", "connection_reset", SEV3, SUPERVISION),
    ("BrokenPipeError: [Errno 32] Broken pipe", "connection_reset", SEV3, SUPERVISION),
    ("RuntimeError: Connection closed by peer [10.0.0.2]:3345", "connection_reset", SEV3, SUPERVISION),
    ("DistBackendError: remote process exited or there was a network error", "network_error", SEV3, PROPAGATION),
    ("RuntimeError: the workers of this replica can't reach each other", "network_error", SEV3, PROPAGATION),
    ("DistBackendError: NCCL system error: unhandled system error", "network_error", SEV3, PROPAGATION),
    ("OSError: [Errno 101] Network is unreachable", "network_error", SEV3, PROPAGATION),
    ("RuntimeError: ibv_post_send failed", "network_error", SEV3, PROPAGATION),
    ("RuntimeError: CUDA error: device-side assert triggered", "cuda_error", SEV2, PROPAGATION),
    ("RuntimeError: CUBLAS_STATUS_EXECUTION_FAILED", "cuda_error", SEV2, PROPAGATION),
    ("OSError: [Errno 28] No space left on device", "host_error", SEV1, PROPAGATION),
    ("OSError: [Errno 5] Input/output error", "host_error", SEV1, PROPAGATION),
    ("OSError: [Errno 30] Read-only file system", "host_error", SEV1, PROPAGATION),
    # what no row knows: SEV2, but SEV1 where it comes from a device or a host
    ("RuntimeError: PCIe link error on slot 4", "device_or_host_error", SEV1, PROPAGATION),
    ("RuntimeError: GPU 3 hardware failure", "device_or_host_error", SEV1, PROPAGATION),
    ("RuntimeError: the disk has failed", "device_or_host_error", SEV1, PROPAGATION),
    ("ValueError: too many values to unpack", "exception", SEV2, PROPAGATION),
    ("KeyError: 'error_rate'", "exception", SEV2, PROPAGATION),
    ("AssertionError: hosting costs must not fail the audit", "exception", SEV2, PROPAGATION),
]


@pytest.mark.parametrize(("text", "cause", "severity", "method"), EXCEPTIONS, ids=[row[0][:48] for row in EXCEPTIONS])
def test_an_exception_has_a_cause_and_a_severity(text: str, cause: str, severity: Severity, method: str | None) -> None:
    kind, _, message = text.partition(": ")
    found = of_exception(Raised(kind, message))
    assert (found.cause, found.severity) == (cause, severity)
    assert found.method == (method or PROPAGATION)


def test_every_row_of_the_table_is_tried() -> None:
    assert {row.cause for row in triage.EXCEPTIONS} <= {cause for _, cause, _, _ in EXCEPTIONS}


EXITS = [
    (Exited("gpt/0.0", -signal.SIGKILL), "process_killed", SEV2),
    (Exited("gpt/0.0", -signal.SIGSEGV), "segmentation_fault", SEV2),
    (Exited("gpt/0.0", -signal.SIGBUS), "bus_error", SEV2),
    (Exited("gpt/0.0", -signal.SIGABRT), "aborted", SEV2),
    (Exited("gpt/0.0", -signal.SIGTERM), "process_terminated", SEV2),
    (Exited("gpt/0.0", -signal.SIGUSR2), "killed_by_signal", SEV2),
    (Exited("gpt/0.0", 7), "exited_abnormally", SEV2),
    (Exited("gpt/0.0", 0), "left_the_loop_early", SEV2),
    (Exited("gpt/0.0", 127, Raised("NotStarted", "no such file")), "not_started", SEV2),
]


@pytest.mark.parametrize(("exited", "cause", "severity"), EXITS, ids=[row[1] for row in EXITS])
def test_an_exit_has_a_cause_and_a_severity(exited: Exited, cause: str, severity: Severity) -> None:
    assert of_exit(exited) == Finding(cause, severity, SUPERVISION)


def test_what_was_raised_says_more_than_the_exit_code() -> None:
    assert of_exit(Exited("gpt/0.0", 1, Raised("MemoryError", ""))).cause == "out_of_memory"


@pytest.mark.parametrize(
    ("finding", "severity", "method"),
    [
        (triage.LOST_CONNECTION, SEV1, NODE_HEALTH),
        (triage.TASK_HANG, SEV2, STATISTICS),
        (triage.STOPPED, SEV2, STATISTICS),
        (triage.LINK, SEV3, STATISTICS),
        (triage.COMMUNICATION, SEV3, PROPAGATION),
        (triage.UNREACHABLE, SEV3, PROPAGATION),
        (triage.CHECKSUMS, SEV2, STATISTICS),
    ],
    ids=lambda value: getattr(value, "cause", None),
)
def test_what_is_noticed_from_outside_has_a_severity(finding: Finding, severity: Severity, method: str) -> None:
    assert (finding.severity, finding.method) == (severity, method)


@given(st.text(), st.text())
def test_unknown_errors_are_sev2_unless_a_device_or_a_host_is_named(kind: str, message: str) -> None:
    found = of_exception(Raised(kind, message))
    if found.cause == "exception":
        assert found.severity is SEV2
    if found.cause == "device_or_host_error":
        assert found.severity is SEV1
        assert re.search("gpu|device|pcie|hardware|disk|host", f"{kind}: {message}", re.IGNORECASE)


@given(st.integers(-64, 255))
def test_every_exit_code_is_told_in_words(code: int) -> None:
    assert of_exit(Exited("gpt/0.0", code)).cause
    assert evidence_of(Exited("gpt/0.0", code)).startswith("killed by" if code < 0 else f"exit code {code}")


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
  File "train.py", line 4, in main
    raise ValueError({!r})
ValueError: {}
"""


def test_the_same_fault_has_the_same_signature_whatever_its_message() -> None:
    one = Raised("ValueError", "rank 0", TRACEBACK.format("rank 0", "rank 0"))
    other = Raised("ValueError", "rank 1", TRACEBACK.format("rank 1", "rank 1"))
    assert signature(one) == signature(other) == 'ValueError at File "train.py", line 4, in main'
    assert signature(Raised("KeyError", "rank 0", one.traceback)) != signature(one)
    assert signature(None) == ""


def test_a_fault_that_was_wrapped_has_the_signature_of_where_it_came_from() -> None:
    """As torch's pipeline stages wrap what a model raises."""

    def wrapped(place: str) -> Raised:
        outer = 'Traceback (most recent call last):\n  File "stage.py", line 900, in forward\nRuntimeError: [Stage 1]'
        caused = "The above exception was the direct cause of the following exception:"
        return Raised("RuntimeError", "[Stage 1]", f"{TRACEBACK.replace('line 4', place)}\n\n{caused}\n\n{outer}\n")

    assert signature(wrapped("line 4")) == 'RuntimeError at File "train.py", line 4, in main'
    assert signature(wrapped("line 5")) != signature(wrapped("line 4"))


def test_evidence_names_the_place_and_the_traceback() -> None:
    exited = Exited("gpt/0.0", 1, Raised("ValueError", "no", "Traceback: no"), "stacks", Sample(step=7, micro_batch=3))
    assert evidence_of(exited).splitlines() == [
        "exit code 1",
        "last seen in step 7, micro-batch 3",
        "Traceback: no",
        "stacks",
    ]
