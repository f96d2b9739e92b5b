"""The rules of the architecture: each takes modules and returns what breaks it, with the reason.

`test_architecture.py` applies them to the product, and to small planted violations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

PACKAGE = "unicorn_mgr"
PRODUCT = f"src/{PACKAGE}"
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500

MAY_IMPORT: dict[str, frozenset[str]] = {
    "": frozenset({"worker"}),  # the researcher's names, loaded on first use
    "model": frozenset(),
    "phases": frozenset(),
    "wire": frozenset(),
    "tls": frozenset(),
    "forms": frozenset(),
    "messages": frozenset({"model"}),
    "effects": frozenset({"model", "messages"}),
    "profiles": frozenset(),
    "planner": frozenset({"model"}),
    "transition": frozenset({"model"}),
    "ring": frozenset({"phases"}),
    "seal": frozenset({"model"}),
    "pieces": frozenset({"model", "seal"}),
    "tokens": frozenset({"model"}),
    "codec": frozenset({"model", "messages", "wire"}),
    "coordinator": frozenset(
        {"model", "phases", "messages", "effects", "planner", "profiles", "codec", "tls", "tokens"}
    ),
    "agent": frozenset({"model", "phases", "messages", "effects", "ring", "seal", "pieces", "codec", "tls", "tokens"}),
    "worker": frozenset({"model", "phases", "messages", "transition", "ring", "seal", "pieces", "codec"}),
    "simulator": frozenset(
        {
            "model",
            "phases",
            "forms",
            "messages",
            "effects",
            "profiles",
            "planner",
            "transition",
            "coordinator",
            "agent",
        }
    ),
    "cli": frozenset(
        {
            "model",
            "phases",
            "forms",
            "messages",
            "effects",
            "planner",
            "codec",
            "tls",
            "coordinator",
            "agent",
            "simulator",
        }
    ),
}
"""Per unit (a package or module right below the root): which other units it may import."""

PURE = (
    "model",
    "phases",
    "tokens",
    "forms",
    "messages*",
    "effects*",
    "transition*",
    "profiles*",
    "planner.problem",
    "planner.choices",
    "planner.core",
    "planner.deadline",
    "planner.knapsack",
    "planner.placement",
    "planner.prices",
    "planner.reasons",
    "planner.simple",
    "planner.table",
    "codec",
    "coordinator.attention",
    "coordinator.backups",
    "coordinator.checkpoints",
    "coordinator.core",
    "coordinator.counters",
    "coordinator.fence",
    "coordinator.hearing",
    "coordinator.incident",
    "coordinator.recall",
    "coordinator.state",
    "coordinator.record*",
    "coordinator.rules*",
    "coordinator.orders",
    "coordinator.outlook",
    "coordinator.triage",
    "coordinator.liveness",
    "coordinator.keyvalue",
    "coordinator.rendezvous",
    "coordinator.admission",
    "coordinator.views",
    "coordinator.describe",
    "coordinator.settings",
    "coordinator.shapes",
    "coordinator.standstills",
    "coordinator.throughput",
    "coordinator.transfers",
    "agent.core",
    "agent.detectors*",
)
"""Modules that get time as `now` and chance as an argument.

`coordinator.logbook` is not among them: it is a queue between coroutines, and decides nothing.
"""

PURE_MAY_IMPORT = frozenset(
    {
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "google.protobuf",
        "hashlib",
        "heapq",
        "hmac",
        "itertools",
        "json",
        "math",
        "operator",
        "pydantic",
        "re",
        "signal",
        "statistics",
        "string",
        "types",
        "typing",
    }
)
"""A list of what is allowed, not of what is forbidden: the next impure library is unknown today."""

CONSTANTS_ONLY = {"signal": ("SIG", "Signals")}
"""Modules of which a core may only read names that begin so."""

IMPURE_BUILTINS = frozenset({"open", "print", "input", "hash", "id", "eval", "exec", "__import__", "breakpoint"})

WITHOUT_TORCH = ("coordinator*", "agent*", "simulator*", "cli*")
TORCH_EXTRA = frozenset({"torch", "numpy", "fsspec"})

ENTRY_POINTS = ("cli.main", "cli.__main__", "")


@dataclass(frozen=True)
class Import:
    line: int
    target: str  # dotted, from the root of all modules


@dataclass(frozen=True)
class Module:
    """One file.  `name` is dotted, without the package's own."""

    name: str
    source: str
    path: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def unit(self) -> str:
        return self.name.partition(".")[0]

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Everywhere in the file: at its head, in functions, for type checkers."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [Import(node.lineno, a.name) for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = f"{PACKAGE}.{self.name}".split(".")
                    up = node.level - self.is_package
                    base = ".".join([*parts[: len(parts) - up], *filter(None, [base])])
                found += [Import(node.lineno, f"{base}.{a.name}") for a in node.names]
        return tuple(found)


Modules = Mapping[str, Module]


def read(root: Path, shown: str) -> dict[str, Module]:
    """All modules of the folder at `root`, but for generated ones; messages name it as `shown`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        relative = path.relative_to(root)
        parts = list(relative.with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path.read_text(), f"{shown}/{relative}", is_package)
    return found


def of(**sources: str) -> dict[str, Module]:
    """Modules for tests of the rules; `a__b` is the module a.b."""
    found = {}
    for name, source in sources.items():
        parts = name.split("__")
        found[".".join(parts)] = Module(".".join(parts), source, f"{PRODUCT}/{'/'.join(parts)}.py")
    return found


def ours(target: str, modules: Modules) -> str | None:
    """The product's module that an import reaches; None for anybody else's."""
    if target != PACKAGE and not target.startswith(f"{PACKAGE}."):
        return None
    name = target.removeprefix(PACKAGE).removeprefix(".")
    while name and name not in modules:
        above = name.rpartition(".")[0]
        if above.startswith("wire") or name.startswith("wire"):
            return name  # generated modules are not read
        name = above
    return name


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


# -- imports --------------------------------------------------------------------------------


def direction(modules: Modules) -> Iterator[str]:
    """Units import in one direction."""
    for m in modules.values():
        if m.unit not in MAY_IMPORT:
            yield (
                f"{m.at(1)}: unit {m.unit!r} has no place among the layers: say in MAY_IMPORT what it may import. "
                "A new package without a rule is how two-way imports begin"
            )
            continue
        for i in m.imports:
            target = ours(i.target, modules)
            unit = target.partition(".")[0] if target is not None else ""
            if unit and unit != m.unit and unit not in MAY_IMPORT[m.unit]:
                yield (
                    f"{m.at(i.line)}: {m.unit or 'the package'} imports {unit}. Imports go one way, so that each part "
                    "can be understood, tested and run without those above it; what both need belongs into "
                    "model, messages or effects"
                )


def purity(modules: Modules) -> Iterator[str]:
    """Cores see no clock, chance, network, disk or log."""
    for m in modules.values():
        if not matches(m.name, PURE):
            continue
        for i in m.imports:
            target = ours(i.target, modules)
            if target and not matches(target, (*PURE, "wire*")):
                yield f"{m.at(i.line)}: a core imports {PACKAGE}.{target}, which is not pure. {_WHY_PURE}"
            if target is None and not _allowed(i.target):
                yield f"{m.at(i.line)}: a core imports {i.target}. {_WHY_PURE}"
        for node in ast.walk(m.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
                yield f"{m.at(node.lineno)}: a core calls {node.func.id}(). {_WHY_PURE}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                prefixes = CONSTANTS_ONLY.get(node.value.id)
                if prefixes is not None and not node.attr.startswith(prefixes):
                    yield f"{m.at(node.lineno)}: a core uses {node.value.id}.{node.attr}. {_WHY_PURE}"


_WHY_PURE = (
    "The same core runs in the service, in the simulator and in the replay of a journal: time comes in as `now`, "
    "chance as an argument, and effects go out as actions; otherwise a replay is no proof of anything"
)


def _allowed(target: str) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in PURE_MAY_IMPORT)


def torch_free(modules: Modules) -> Iterator[str]:
    """Coordinator, agent and command line run where torch is not installed."""
    for m in modules.values():
        if not matches(m.name, WITHOUT_TORCH):
            continue
        chain = _chain_to_torch(m, modules)
        if chain:
            yield (
                f"{m.at(1)}: reaches torch by {' > '.join(chain)}. An operator need not install it, and importing it "
                "takes seconds and starts threads, after which a process must not fork"
            )


def _chain_to_torch(start: Module, modules: Modules) -> list[str]:
    came: dict[str, list[str]] = {start.name: [start.name]}
    waiting = [start]
    while waiting:
        m = waiting.pop(0)
        for i in m.imports:
            if i.target.partition(".")[0] in TORCH_EXTRA:
                return [*came[m.name], i.target]
            target = ours(i.target, modules)
            # The root's own imports are for type checkers; it loads what is asked for.
            if target and target in modules and target not in came:
                came[target] = [*came[m.name], target]
                waiting.append(modules[target])
    return []


# -- size -----------------------------------------------------------------------------------


def size(modules: Modules) -> Iterator[str]:
    """Functions fit on a screen, files into a head."""
    for m in modules.values():
        lines = len(m.source.splitlines())
        if lines > FILE_LINES_MAX:
            yield (
                f"{m.at(1)}: {lines} lines, at most {FILE_LINES_MAX}. The 3,000-line module begins with one more "
                "method; part it by what each half is responsible for"
            )
        for node in ast.walk(m.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    yield (
                        f"{m.at(node.lineno)}: {node.name} has {length} lines, at most {FUNCTION_LINES_MAX}: "
                        "what does not fit on a screen is not read as a whole"
                    )


# -- what nobody uses -----------------------------------------------------------------------


def dead_files(modules: Modules) -> Iterator[str]:
    """Every module is reached from an entry point: by an import, or by its name (`python -m`)."""
    alive: set[str] = set()
    waiting = [name for name in ENTRY_POINTS if name in modules]
    while waiting:
        name = waiting.pop()
        if name in alive:
            continue
        alive.add(name)
        m = modules[name]
        named = [n.value for n in ast.walk(m.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        for text in (*named, *(i.target for i in m.imports)):
            parts = (ours(text, modules) or "").split(".")
            packages = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
            waiting += [p for p in packages if p in modules]
    for name, m in modules.items():
        if name not in alive:
            yield (
                f"{m.at(1)}: no entry point leads here. A file that nothing uses still has to be read, "
                "and looks like a feature"
            )


def dead_names(modules: Modules) -> Iterator[str]:
    """Every function, class, method and constant is mentioned outside its own definition."""
    exported = _exported(modules)
    mentioned: dict[str, int] = {}
    for m in modules.values():
        for name in _mentions(m.tree):
            mentioned[name] = mentioned.get(name, 0) + 1
    for m in modules.values():
        for node, name in _defined(m.tree):
            within = sum(n == name for n in _mentions(node))
            if mentioned.get(name, 0) <= within and name not in exported:
                yield (
                    f"{m.at(node.lineno)}: nothing mentions {name}. What is not used is not tested by use, "
                    "and misleads whoever looks for how things work"
                )


def _exported(modules: Modules) -> set[str]:
    """What researchers call: the public methods of the classes that the package itself offers."""
    offered = {i.target for m in modules.values() if not m.name for i in m.imports}
    return {
        inner.name
        for m in modules.values()
        for node in m.tree.body
        if isinstance(node, ast.ClassDef) and f"{PACKAGE}.{m.name}.{node.name}" in offered
        for inner in node.body
        if isinstance(inner, ast.FunctionDef)
    }


def _mentions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text
            case _:
                pass


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def _defined(tree: ast.Module) -> Iterator[tuple[_Definition, str]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                if not name.startswith("__"):
                    yield node, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if not node.decorator_list and not name.startswith("__"):
                    yield node, name
            case ast.ClassDef(name=name, bases=bases):
                yield node, name
                if any(isinstance(b, ast.Name) and b.id == "BaseModel" for b in bases):
                    yield from _settings(node)
                # A base of somebody else's may call what nothing here mentions.
                for inner in node.body if not bases else ():
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("__"):
                        yield inner, inner.name
            case _:
                pass


def _settings(node: ast.ClassDef) -> Iterator[tuple[_Definition, str]]:
    """Numbers that somebody may set: one that nothing reads is a promise nobody keeps."""
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner, inner.target.id


# -- words ----------------------------------------------------------------------------------


def docstrings(modules: Modules) -> Iterator[str]:
    """Public names say in a line what they are for."""
    for m in modules.values():
        if ast.get_docstring(m.tree) is None:
            yield f"{m.at(1)}: no docstring. {_WHY_WORDS}"
        if m.unit == "messages":
            continue  # the proto files tell what each field means, for every language
        for node in _public(m.tree.body):
            if ast.get_docstring(node) is None:
                yield f"{m.at(node.lineno)}: {node.name} has no docstring. {_WHY_WORDS}"


_WHY_WORDS = "A newcomer reads these first: one line saying what it is for, or why it is so"

_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _public(body: list[ast.stmt]) -> Iterator[_Documented]:
    for node in body:
        if isinstance(node, _Documented) and not node.name.startswith("_"):
            if any("overload" in ast.unparse(d) for d in node.decorator_list):
                continue
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)
