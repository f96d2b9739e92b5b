"""A YAML document that knows where in its file each of its values is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from unicorn_mgr.simulator.scenario import BadScenario

BYTES_MAX = 1 << 22


class Document:
    """The content of a file.  Raises `BadScenario` if it isn't one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.stat().st_size > BYTES_MAX:
                raise BadScenario(f"{path}: larger than {BYTES_MAX} bytes; is it a scenario?")
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as wrong:
            raise BadScenario(f"{path}: {getattr(wrong, 'strerror', None) or 'not text'}") from wrong
        try:
            self._root = yaml.compose(text, yaml.SafeLoader)
            self.content: Any = yaml.safe_load(text)
        except yaml.YAMLError as wrong:
            mark = getattr(wrong, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise BadScenario(f"{path}{line}: not YAML: {' '.join(str(wrong).split())}") from wrong
        if not isinstance(self.content, dict):
            raise BadScenario(f"{path}:1: want fields and values")
        self._refuse_doubles()

    def wrong(self, place: Iterable[str | int], text: str) -> BadScenario:
        """Where, and what is wrong with the value there; of one that is missing, the line of what it is missing in."""
        node, line = self._root, 1
        parts = [part for part in place if part != "[key]"]
        for part in parts:
            key, node = _inside(node, part)
            if key is None:
                break
            line = key.start_mark.line + 1
        field = ".".join(map(str, parts))
        return BadScenario(f"{self.path}:{line}: {field}: {text}" if field else f"{self.path}:{line}: {text}")

    def _refuse_doubles(self) -> None:
        """YAML lets the last of them win in silence."""
        left: list[tuple[tuple[str | int, ...], yaml.Node | None]] = [((), self._root)]
        known: set[int] = set()  # an alias leads to the same node again, even to one around it
        while left:
            place, node = left.pop()
            if id(node) in known:
                continue
            known.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                left += [((*place, number), item) for number, item in enumerate(node.value)]
            if isinstance(node, yaml.MappingNode):
                left += [((*place, name), value) for name, value in self._fields(place, node)]

    def _fields(self, place: tuple[str | int, ...], node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), int(key.start_mark.line) + 1
            if name in lines:
                field = ".".join(map(str, (*place, name)))
                raise BadScenario(f"{self.path}:{line}: {field}: in line {lines[name]} already: want it once")
            lines[name] = line
            yield name, value


def _inside(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    """What names a part of it (its key, or itself in a list), and the part."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if str(key.value) == str(part):
            return key, value
    return None, None
