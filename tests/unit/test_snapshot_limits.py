"""How much of a node's memory snapshots may take, if nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_mgr.cli.agent import CGROUPS, find_snapshot_bytes, limits
from unicorn_mgr.cli.common import Problem


def laid_out(folder: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """What the kernel says of control groups, and their folders."""
    said, root = folder / "cgroup", folder / "root"
    said.write_text(groups)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return said, root


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/pod/agent\n", {"pod/agent/memory.max": "max", "pod/memory.max": "4096"}, [4096]),
        ("0::/pod/agent\n", {"pod/agent/memory.max": "1024", "pod/memory.max": "4096"}, [1024, 4096]),
        ("0::/\n", {"memory.max": "2048"}, [2048]),
        ("0::/elsewhere/inside\n", {"memory.max": "2048"}, [2048]),
        ("4:memory:/pod\n1:cpu:/pod\n", {"memory/pod/memory.limit_in_bytes": "512", "cpu/pod/memory.max": "1"}, [512]),
        ("", {}, []),
    ],
)
def test_limits_of_all_groups_around_count(
    tmp_path: Path, groups: str, files: dict[str, str], found: list[int]
) -> None:
    assert list(limits(*laid_out(tmp_path, groups, files))) == found


def test_half_of_what_there_is() -> None:
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert 0 < find_snapshot_bytes(None) <= total * 1024 // 2
    assert find_snapshot_bytes(None) <= min(limits(Path("/proc/self/cgroup"), CGROUPS), default=1 << 62) // 2


def test_what_is_asked_for_goes_before() -> None:
    assert find_snapshot_bytes(0) == 0
    with pytest.raises(Problem, match="snapshot-bytes: -1: want at least 0"):
        find_snapshot_bytes(-1)
