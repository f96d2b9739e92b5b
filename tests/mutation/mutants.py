"""Small changes of a program, each of which a test should notice.

A mutant is one function of which one place is otherwise: a comparison, a condition, a number, an operator, or a
statement that is not there.  Texts, types and what is evaluated while a module is loaded stay as they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""What each is flipped to: its neighbour at the bound, and its opposite."""

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}

OTHERS = {"min": "max", "max": "min", "any": "all", "all": "any"}
"""Functions that are easily taken for each other."""


@dataclass(frozen=True)
class Mutant:
    """One change."""

    path: str
    function: str
    """Its qualified name, or that of the outermost one around it."""
    line: int
    kind: str
    before: str
    after: str
    number: int
    """Among those of its file."""

    @property
    def what(self) -> str:
        """The same wherever in its file it stands: what a reason is written down for."""
        return f"{self.path} {self.function}: {self.before} -> {self.after}"


Change = Callable[[], None]


def mutants_of(source: str, path: str) -> list[Mutant]:
    """All of a file's, in the order of its lines."""
    return [mutant for mutant, _ in _changes(ast.parse(source), path)]


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The file with that change."""
    tree = ast.parse(source)
    for found, change in _changes(tree, mutant.path):
        if found == mutant:
            change()
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant.path} is not the file that {mutant} was drawn from")


def _changes(tree: ast.Module, path: str) -> Iterator[tuple[Mutant, Change]]:
    """Mutants, each with what makes it; the tree is as before until that is called."""
    found = ((name, *place) for name, function in functions_of(tree) for place in _places(function))
    for number, (name, node, kind, before, after, change) in enumerate(found):
        yield Mutant(path, name, node.lineno, kind, before, after, number), change


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods by their qualified name, not those inside of them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{f.name}", f) for f in node.body if isinstance(f, ast.FunctionDef))


Place = tuple[Any, str, str, str, Change]
"""Node, kind, before, after, and what makes the change."""


def _places(function: ast.FunctionDef) -> Iterator[Place]:
    for statement in function.body:
        yield from _in(statement, function)


def _in(node: ast.AST, parent: ast.AST) -> Iterator[Place]:
    """Of a node and all below it; annotations and texts are not looked into."""
    if isinstance(node, ast.stmt):
        yield from _removals(node, parent)
    yield from _expressions(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for below in value if isinstance(value, list) else [value]:
            if isinstance(below, ast.AST) and not isinstance(below, (ast.JoinedStr, ast.Raise, ast.pattern)):
                yield from _in(below, node)


def _removals(node: ast.stmt, parent: ast.AST) -> Iterator[Place]:
    """A statement is not there.  A name that is bound stays bound: to lack it would only raise."""
    removable = isinstance(node, (ast.Expr, ast.AugAssign, ast.Return, ast.Continue, ast.Break, ast.Delete)) or (
        isinstance(node, ast.Assign) and not any(isinstance(t, (ast.Name, ast.Tuple)) for t in node.targets)
    )
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if not removable or text or (isinstance(node, ast.Return) and not isinstance(parent, (ast.If, ast.For))):
        return
    for field, value in ast.iter_fields(parent):
        if isinstance(value, list) and node in value:
            yield node, "statement removed", _line(node), "pass", _setter(parent, field, value.index(node), ast.Pass())


def _expressions(node: ast.AST) -> Iterator[Place]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            for other in COMPARISONS[type(op)]:
                yield _place(node, "comparison flipped", ops=[other()])
        case ast.BoolOp(op=op):
            yield _place(node, "and and or", op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield _place(node, "operator", op=OPERATORS[type(op)]())
        case ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield _place(node, "operator", op=OPERATORS[type(op)]())
        case ast.Constant(value=bool() as value):
            yield _place(node, "constant", value=not value)
        case ast.Constant(value=int() as value):
            yield _place(node, "off by one", value=value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in OTHERS:
            yield _place(node, "function", func=ast.Name(OTHERS[name], ast.Load()))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            # `not not x` in place of `x`: a node can't become another one
            yield _place(node, "condition negated", operand=ast.UnaryOp(ast.Not(), operand))
        case ast.If() | ast.While() | ast.IfExp():
            if not isinstance(node.test, (ast.Compare, ast.UnaryOp)):  # those are flipped where they stand
                yield _place(node, "condition negated", show=node.test, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.comprehension(ifs=ifs):
            for i, test in enumerate(ifs):
                others = [*ifs[:i], ast.Constant(value=True), *ifs[i + 1 :]]
                yield test, "condition removed", _line(test), "True", _fields(node, ifs=others)


def _place(node: Any, kind: str, show: ast.AST | None = None, **fields: Any) -> Place:
    after = copy.copy(node)
    for name, value in fields.items():
        setattr(after, name, value)
    shown_after = after if show is None else fields["test"]
    return node, kind, _line(show or node), _line(shown_after), _fields(node, **fields)


def _fields(node: ast.AST, **fields: Any) -> Change:
    def change() -> None:
        for name, value in fields.items():
            setattr(node, name, value)

    return change


def _setter(parent: ast.AST, field: str, index: int, value: ast.stmt) -> Change:
    def change() -> None:
        getattr(parent, field)[index] = value

    return change


def _line(node: ast.AST) -> str:
    text = ast.unparse(node).strip().splitlines()
    return text[0] if len(text) == 1 else f"{text[0]} ..."


# -- put in place --------------------------------------------------------------------------


def put_in_place(module: ModuleType, tree: ast.Module, only: str = "") -> list[str]:
    """Have a loaded module's functions do what that tree says; returns those that changed, by qualified name.

    Functions stay the objects that they are, so whoever has imported one has the changed one.
    """
    assert module.__file__ is not None
    compiled = compile(tree, module.__file__, "exec", dont_inherit=True)
    codes = {code.co_qualname: code for code in _codes(compiled)}
    changed = []
    for name, _ in functions_of(tree):
        if only and name != only:
            continue
        function, code = function_of(module, name), codes[name]
        if function.__code__.co_code != code.co_code or _constants(function.__code__) != _constants(code):
            function.__code__ = code
            changed.append(name)
    return changed


def _constants(code: CodeType) -> list[Any]:
    """With those of functions inside of it."""
    return [
        (c.co_code, c.co_names, _constants(c)) if isinstance(c, CodeType) else (type(c), c)
        for c in (*code.co_consts, code.co_names)
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def function_of(module: ModuleType, name: str) -> FunctionType:
    """A function or method of a loaded module, whatever is wrapped around it."""
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    assert isinstance(found, FunctionType), f"{name} is no function"
    return found
