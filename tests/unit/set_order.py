"""The rule that cores never depend on the order of a set, as far as their source shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from unit.architecture import PURE, Module, Modules, matches

ORDER_FREE = frozenset({"sorted", "set", "frozenset", "any", "all", "len"})
ORDER_BOUND = frozenset(
    {"list", "tuple", "enumerate", "iter", "next", "map", "filter", "zip", "reversed", "deque", "sum"}
)


def order(modules: Modules) -> Iterator[str]:
    """Cores never depend on the order of a set."""
    cores = [m for m in modules.values() if matches(m.name, PURE)]
    fields, functions = _known_sets(cores)
    for m in cores:
        for line in _Sets(m.tree, fields, functions).lines():
            yield (
                f"{m.at(line)}: a core goes through a set in its own order. Hashes of strings differ from process "
                "to process, so a replay would take other decisions than the run did: wrap it in sorted()"
            )


def _known_sets(modules: list[Module]) -> tuple[frozenset[str], frozenset[str]]:
    """Names of fields and of functions that are sets wherever they are declared."""
    fields: dict[str, bool] = {}
    functions: dict[str, bool] = {}
    for m in modules:
        for node in ast.walk(m.tree):
            for a in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(a, ast.AnnAssign) and isinstance(a.target, ast.Name):
                    fields[a.target.id] = fields.get(a.target.id, True) and _says_set(a.annotation)
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                functions[node.name] = functions.get(node.name, True) and _says_set(node.returns)
    return frozenset(n for n, is_set in fields.items() if is_set), frozenset(n for n, s in functions.items() if s)


@dataclass(frozen=True)
class _Sets:
    """Finds iterations over what is a set as far as the source shows."""

    tree: ast.Module
    fields: frozenset[str]
    functions: frozenset[str]

    def lines(self) -> list[int]:
        functions = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]
        scopes: list[ast.Module | ast.FunctionDef] = [self.tree, *functions]
        return sorted({line for scope in scopes for line in self._in_scope(scope)})

    def _in_scope(self, scope: ast.Module | ast.FunctionDef) -> Iterator[int]:
        names: set[str] = set()
        if isinstance(scope, ast.FunctionDef):
            arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
            names = {a.arg for a in arguments if a.annotation is not None and _says_set(a.annotation)}
        for _ in range(2):  # a name may be made from one that is assigned further down
            names |= {n for node in ast.walk(scope) for n in self._assigned(node, names)}
        excused = {id(c) for node in ast.walk(scope) for c in self._excused(node)}
        for node in ast.walk(scope):
            yield from (x.lineno for x in self._gone_through(node, excused) if self._is_set(x, names))

    def _assigned(self, node: ast.AST, names: set[str]) -> Iterator[str]:
        if isinstance(node, ast.Assign) and self._is_set(node.value, names):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _says_set(node.annotation):
            yield node.target.id

    def _excused(self, node: ast.AST) -> Iterator[ast.AST]:
        """Comprehensions whose order does not matter."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE:
            for argument in node.args:
                yield from getattr(argument, "generators", [])
        if isinstance(node, ast.SetComp):
            yield from node.generators

    def _gone_through(self, node: ast.AST, excused: set[int]) -> Iterator[ast.expr]:
        match node:
            case ast.For(iter=found):
                yield found
            case ast.comprehension(iter=found) if id(node) not in excused:
                yield found
            case ast.Starred(value=found) | ast.YieldFrom(value=found):
                yield found
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in ORDER_BOUND:
                yield from arguments
            case ast.Call(func=ast.Attribute(attr="join" | "extend" | "fromkeys"), args=arguments):
                yield from arguments
            case ast.Call(func=ast.Attribute(value=found, attr="pop"), args=[]):
                yield found
            case _:
                pass

    def _is_set(self, node: ast.expr, names: set[str]) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in names
            case ast.Attribute(attr=name):
                return name in self.fields
            case ast.Call(func=ast.Name(id=name)):
                return name in {"set", "frozenset"} or name in self.functions
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in {"union", "intersection", "difference", "symmetric_difference"} | self.functions
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return any(self._is_set(x, names) or _is_keys(x) for x in (left, right))
            case ast.IfExp(body=one, orelse=other):
                return self._is_set(one, names) or self._is_set(other, names)
            case _:
                return False


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def _says_set(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return text.startswith(("set", "frozenset", "AbstractSet", "Set["))
