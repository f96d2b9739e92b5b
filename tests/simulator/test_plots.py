"""Pictures: whole files, axes with units, and the same bytes every time."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from simulator.toy import SITUATION, TOY, Stops

from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.plots import STRETCHES, draw, mean_slots
from unicorn_mgr.simulator.study import Study, compare

NAMES = ("waf", "lost", "allocation-slow", "allocation-fast")


@pytest.fixture(scope="module")
def study() -> Study:
    return compare(SITUATION, [Stops("slow"), Stops("fast", share=0.5)], range(2), keeps_first=True)


@pytest.fixture(scope="module")
def folder(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plots") / "new"
    written = draw(study, folder)
    assert sorted(written) == sorted(folder / f"{name}.{kind}" for name in NAMES for kind in ("svg", "png"))
    return folder


def texts(path: Path) -> list[str]:
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_axes_say_what_they_show_and_in_which_unit(folder: Path) -> None:
    assert {"time (hours)", "WAF (weighted PFLOP/s), mean over 1.5 min"} <= set(texts(folder / "waf.svg"))
    assert {"time (hours)", "GPUs, mean over 1.5 min"} <= set(texts(folder / "allocation-slow.svg"))
    assert "lost GPU-hours (mean over the seeds)" in texts(folder / "lost.svg")


def test_jobs_policies_causes_and_faults_are_named(folder: Path) -> None:
    shown = texts(folder / "waf.svg")
    assert "toy: work done over time" in shown
    assert any(text.startswith("slow: ") for text in shown)
    assert any(text.startswith("fast: ") for text in shown)
    assert {"node lost", "process ends", "hang", "link breaks"} <= set(shown)
    assert {"big (7B)", "small", "held, not training", "idle", "all GPUs"} <= set(texts(folder / "allocation-fast.svg"))
    assert {"slow", "fast", "cause node", "cause hang"} <= set(texts(folder / "lost.svg"))


def test_pngs_are_whole(folder: Path) -> None:
    for name in NAMES:
        data = (folder / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert data.endswith(b"IEND" + zlib.crc32(b"IEND").to_bytes(4, "big"))
        assert int.from_bytes(data[16:20], "big") > 1000


def test_the_same_study_is_drawn_with_the_same_bytes(study: Study, folder: Path, tmp_path: Path) -> None:
    for path in draw(study, tmp_path):
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
        assert not re.search(rb"<dc:date>|202\d-", path.read_bytes() if path.suffix == ".svg" else b"")


def test_means_over_time_keep_all_slots() -> None:
    lived = History("one", TOY, 1, {"big": 4e15, "small": 2e15})
    lived.becomes(0.0, "big", Doing.TRAINING, 4, 4e15)
    lived.becomes(1234.5, "big", Doing.TRANSITION, 2, 0.0, "ECC")
    lived.becomes(7001.0, "big", Doing.TRAINING, 2, 2e15)
    every = TOY.seconds / STRETCHES
    training, standing = mean_slots(lived, 0)
    assert sum(standing) * every == pytest.approx(2 * (7001.0 - 1234.5))
    assert sum(training) * every == pytest.approx(4 * 1234.5 + 2 * (TOY.seconds - 7001.0))
    assert (training[0], standing[0]) == (4.0, 0.0)


def test_who_draws_nothing_does_not_wait_for_matplotlib() -> None:
    program = "import sys, unicorn_mgr.simulator.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
