"""Agents on one machine keep out of each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_mgr.agent.service import AgentError, claim
from unicorn_mgr.cli.common import Problem, agent_socket, runtime_folder


@pytest.fixture(autouse=True)
def short_runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path("/tmp")
    monkeypatch.setattr("unicorn_mgr.cli.common.runtime_folder", lambda: folder / "unicorn-test")
    return folder


def test_a_socket_lies_beside_the_data_if_its_path_is_short_enough() -> None:
    assert agent_socket(Path("/srv/agent"), "node-0") == Path("/srv/agent/run/node-0.sock")


def test_agents_with_long_data_paths_and_one_name_have_sockets_of_their_own() -> None:
    one, other = (Path("/srv") / (letter * 120) for letter in "ab")
    sockets = [agent_socket(data, "node-0") for data in (one, other)]
    assert sockets[0] != sockets[1]
    assert sockets[0] == agent_socket(one, "node-0"), "the same after a restart"
    assert all(len(str(s)) < 108 for s in sockets)


def test_a_second_agent_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with claim(tmp_path), pytest.raises(AgentError, match="another agent runs on it; give --data another folder"):
        claim(tmp_path)
    claim(tmp_path).close()


def test_a_runtime_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/x" if len(str(tmp_path)) >= 40 else str(tmp_path))
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(Path, "stat", lambda _: type("Stat", (), {"st_uid": -1})())
    with pytest.raises(Problem, match="belongs to somebody else"):
        runtime_folder()
