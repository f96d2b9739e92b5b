"""A person before a running cluster, for tests of the command line."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_line import Said, process, ran, unicorn
from e2e.harness import Cluster

DOCUMENT = (Path(__file__).parents[2] / "docs" / "json.md").read_text()

_names = itertools.count(1)


@dataclass(eq=False)
class Shell:
    """A person before a running cluster."""

    cluster: Cluster
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, *words: str) -> Said:
        return unicorn(*words, coordinator=self.cluster.local.address)

    def json(self, *words: str) -> Any:
        said = self(*words, "--json")
        assert (said.code, said.err) == (0, ""), said
        return json.loads(said.out)

    def ran(self, *words: str) -> Said:
        return ran(*words, coordinator=self.cluster.local.address)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        self.started.append(process(*words, coordinator=self.cluster.local.address, **options))
        return self.started[-1]

    def name(self) -> str:
        return f"cli-{next(_names)}"


def keys(heading: str) -> list[str]:
    """Documented keys."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^#|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return sorted(row.split("|")[1].strip() for row in rows[2:])
