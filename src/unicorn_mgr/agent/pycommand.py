"""Is a command a Python program, and what would the interpreter run?

Only what a template can reproduce exactly is recognised; everything else starts by exec.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
_PLAIN_FLAGS = frozenset("bBdEIOPqsuv")
_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command line of an interpreter."""

    interpreter: str
    """As typed: a path, or a name to look up in PATH."""
    flags: tuple[str, ...]
    """Those the interpreter must be started with."""
    kind: str
    """script, module or code."""
    target: str
    arguments: tuple[str, ...]
    """After the target: sys.argv[1:]."""


def parse(command: Sequence[str]) -> PythonCommand | None:
    """The Python program that a command runs; None for any other, and for interactive use."""
    if not command or not _INTERPRETER.fullmatch(command[0].rpartition("/")[2]):
        return None
    flags: list[str] = []
    rest = list(command[1:])
    while rest:
        word = rest.pop(0)
        if word in _FLAGS_WITH_VALUE and rest:
            flags += [word, rest.pop(0)]
        elif word.startswith(("-W", "-X")) and len(word) > 2:
            flags.append(word)
        elif word.startswith(("-c", "-m")):
            return _with_value(command[0], flags, word, rest)
        elif word.startswith("-") and len(word) > 1:
            letters, marker, value = _split(word[1:])
            if not set(letters) <= _PLAIN_FLAGS:
                return None
            flags += [f"-{letters}"] if letters else []
            if marker:
                return _with_value(command[0], flags, f"-{marker}{value}", rest)
        elif word == "-":
            return None
        else:
            return PythonCommand(command[0], tuple(flags), "script", word, tuple(rest))
    return None


def _split(letters: str) -> tuple[str, str, str]:
    """Flags run together, up to a -c or -m among them: um pkg -> ("u", "m", "")."""
    for i, letter in enumerate(letters):
        if letter in "cm":
            return letters[:i], letter, letters[i + 1 :]
    return letters, "", ""


def _with_value(interpreter: str, flags: list[str], word: str, rest: list[str]) -> PythonCommand | None:
    value = word[2:] or (rest.pop(0) if rest else "")
    if not value:
        return None
    kind = "code" if word[1] == "c" else "module"
    return PythonCommand(interpreter, tuple(flags), kind, value, tuple(rest))
