"""A script that never calls attach() runs as under torchrun, and is restarted as a gang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.harness import TOLERANCE, Cluster, Job
from torch import nn

SCRIPT = Path(__file__).parent / "scripts" / "ddp.py"
SIZE, STEPS = 3, 6

Told = dict[int, dict[str, Any]]


def submit(shared: Cluster, tmp_path: Path, *arguments: str) -> Job:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--steps", str(STEPS), *arguments]
    return shared.submit([], size=SIZE, size_min=SIZE, command=command)


def told(folder: Path, start: int) -> Told:
    """What the processes of one start have left, by rank."""
    found = {int(p.stem.rpartition("-")[2]): json.loads(p.read_text()) for p in folder.glob(f"ended-{start}-*.json")}
    return dict(sorted(found.items()))


def reference() -> list[torch.Tensor]:
    """What DistributedDataParallel does, in one process: rank 0's parameters, the mean of all gradients."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(SIZE):
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs = torch.randn(3, 4, dtype=torch.float64, generator=generator)
            (model(inputs).square().mean() / SIZE).backward()
        optimizer.step()
    return [p.detach().flatten() for p in model.parameters()]


def check_trained(found: Told) -> None:
    assert list(found) == list(range(SIZE))
    for of in found.values():
        assert of["ranks"] == list(range(SIZE))
        for mine, expected in zip(of["weights"], reference(), strict=True):
            assert (torch.tensor(mine, dtype=torch.float64) - expected).abs().max() <= TOLERANCE


def test_it_runs_as_under_torchrun(shared: Cluster, tmp_path: Path) -> None:
    job = submit(shared, tmp_path)
    assert job.wait().exit_code == 0, shared.logs()
    found = told(tmp_path, 0)
    check_trained(found)
    for rank, of in found.items():
        environment = of["environment"]
        promised = {
            "RANK": str(rank),
            "WORLD_SIZE": str(SIZE),
            "LOCAL_RANK": "0",  # one slot a node here
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(SIZE),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
        }
        assert {name: environment.get(name) for name in promised} == promised
        assert environment["MASTER_ADDR"] == "127.0.0.1", "each worker's store is on its own node"
        assert 0 < int(environment["MASTER_PORT"]) < 1 << 16
    assert shared.incidents(job.name) == []


@pytest.mark.parametrize(
    ("how", "cause"), [("kill", "process_killed"), ("raise", "exception"), ("exit", "exited_abnormally")]
)
def test_the_gang_is_restarted_when_one_fails(shared: Cluster, tmp_path: Path, how: str, cause: str) -> None:
    job = submit(shared, tmp_path, "--die", "1:3", "--how", how)
    assert job.wait().exit_code == 0, shared.logs()
    assert told(tmp_path, 0) == {}
    second = told(tmp_path, 1)
    check_trained(second)
    assert {of["environment"]["TORCHELASTIC_RESTART_COUNT"] for of in second.values()} == {"1"}
    incidents = shared.incidents(job.name)
    assert cause in {i.cause for i in incidents}, incidents
    assert {i.state for i in incidents} == {"closed"}, incidents
