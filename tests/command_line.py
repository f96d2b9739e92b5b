"""The command line as a person types it, inside this process or as one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from unicorn_mgr.cli.main import run

UNICORN = (sys.executable, "-m", "unicorn_mgr.cli")


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """The one line that a mistake is answered with; exit code 2, nothing on stdout."""
        assert self.code == 2, self
        assert self.out == "", self
        assert self.err.startswith("unicorn: "), self
        assert self.err.count("\n") == 1, self
        assert self.err.endswith("\n"), self
        return self.err.removeprefix("unicorn: ").rstrip("\n")


def unicorn(*words: str, coordinator: str = "") -> Said:
    """Run a command in this process: quick, and for commands that don't need a process of their own."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(coordinator), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run([*words])
    return Said(code, out.getvalue(), err.getvalue())


def process(*words: str, coordinator: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process; its output is piped unless `options` say otherwise."""
    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*UNICORN, *words], env=environment(coordinator), text=True, **{**piped, **options})


def ran(*words: str, coordinator: str = "", **options: Any) -> Said:
    """Run a command as a process to its end."""
    with process(*words, coordinator=coordinator, **options) as started:
        out, err = started.communicate()
        return Said(started.returncode, out or "", err or "")


def environment(coordinator: str = "") -> dict[str, str]:
    """This process's, with this coordinator or none."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("UNICORN_")}
    return {**kept, "UNICORN_COORDINATOR": coordinator} if coordinator else kept
