"""Which commands a template can run, and what it runs then."""

from __future__ import annotations

import pytest

from unicorn_mgr.agent.pycommand import PythonCommand, parse


def command(kind: str, target: str, *arguments: str, flags: tuple[str, ...] = (), by: str = "python") -> PythonCommand:
    return PythonCommand(by, flags, kind, target, arguments)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("python train.py", command("script", "train.py")),
        ("python3 train.py -m x", command("script", "train.py", "-m", "x", by="python3")),
        ("/opt/venv/bin/python3.12 a/b.py", command("script", "a/b.py", by="/opt/venv/bin/python3.12")),
        ("python -u -B train.py -u", command("script", "train.py", "-u", flags=("-u", "-B"))),
        ("python -uB train.py", command("script", "train.py", flags=("-uB",))),
        ("python -W error -X dev train.py", command("script", "train.py", flags=("-W", "error", "-X", "dev"))),
        ("python -Werror -Xdev train.py", command("script", "train.py", flags=("-Werror", "-Xdev"))),
        (
            "python --check-hash-based-pycs never x.py",
            command("script", "x.py", flags=("--check-hash-based-pycs", "never")),
        ),
        ("python -m pkg.mod --lr 3", command("module", "pkg.mod", "--lr", "3")),
        ("python -mpkg x", command("module", "pkg", "x")),
        ("python -um pkg x", command("module", "pkg", "x", flags=("-u",))),
        ("python -ucprint(1) x", command("code", "print(1)", "x", flags=("-u",))),
        ("python -c print(1) -c y", command("code", "print(1)", "-c", "y")),
        ("python", None),
        ("python -", None),
        ("python -i train.py", None),
        ("python -V", None),
        ("python --version", None),
        ("python -x train.py", None),
        ("python -S train.py", None),
        ("python -- train.py", None),
        ("python -m", None),
        ("python -c", None),
        ("python -u", None),
        ("python -uq", None),
        ("pypy train.py", None),
        ("python2 train.py", None),
        ("python3-config --libs", None),
        ("torchrun train.py", None),
        ("./train.py", None),
        ("", None),
    ],
)
def test_a_command_line(line: str, found: PythonCommand | None) -> None:
    assert parse(line.split()) == found
