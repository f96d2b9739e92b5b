"""Everything a script can notice of how it was started, as rows: a command and what makes outputs comparable."""

from __future__ import annotations

import importlib.util
import io
import marshal
import textwrap
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.warm import python

Normal = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Row:
    """A command, and how its outputs are made comparable."""

    command: list[str]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    normal: Normal = lambda output: output
    says: str = ""
    """What must be in the output: a row that proves nothing by being silent names it."""


def script(body: str, *arguments: str, flags: tuple[str, ...] = (), **row: Any) -> Row:
    """A file that is run with arguments."""
    files = {"train.py": textwrap.dedent(body), **dict(row.pop("files", {}))}
    return Row(python(*flags, "train.py", *arguments), files, **row)


def code(body: str, *arguments: str, flags: tuple[str, ...] = (), **row: Any) -> Row:
    """The same by -c."""
    return Row(python(*flags, "-c", textwrap.dedent(body), *arguments), **row)


def last_line(output: str) -> str:
    """For tracebacks of -m, in which plain python has frames of runpy."""
    return output.strip().rpartition("\n")[2]


# -- what a script sees ---------------------------------------------------------------------

# Each other environment, and each other set of flags, is another template, which takes seconds.
ELSEWHERE = {
    "TZ": "Asia/Tokyo",
    "LC_ALL": "C",
    "PYTHONPATH": "/nowhere:/elsewhere",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "error::DeprecationWarning",
    "OMP_NUM_THREADS": "2",
}
FLAGS = ("-P", "-B", "-u", "-W", "error::UserWarning", "-X", "faulthandler")

SEES: dict[str, Row] = {
    "names of main": script(
        '''
        """A docstring."""
        for name in ("__name__", "__file__", "__doc__", "__package__", "__spec__", "__cached__"):
            print(name, globals().get(name, "missing"))
        print(type(__loader__).__name__, __builtins__.__name__, sorted(globals()))
        x: int = 3
        print(__annotations__)
        ''',
        says="A docstring.",
    ),
    "names of -c": code("print(sorted(globals()), __name__, __doc__, __package__, __spec__)"),
    "main is main": script(
        """
        import sys, pickle, inspect, dataclasses, typing
        @dataclasses.dataclass
        class Point:
            x: "int"
        def area(p: Point) -> "Point": return p
        print(sys.modules["__main__"].Point is Point, Point.__module__, pickle.loads(pickle.dumps(Point(3))))
        print(typing.get_type_hints(area), inspect.getsource(area), inspect.getfile(Point))
        if __name__ == "__main__":
            print("main")
        """,
        says="Point(x=3)",
    ),
    "annotations are evaluated": script("def f(x: 1 + 1): ...\nprint(f.__annotations__)", says="{'x': 2}"),
    "argv": script(
        "import sys; print(sys.argv, sys.orig_argv)", "--lr=0.1", "a b", "", "-u", "-m", "é", "--", "$HOME", says="a b"
    ),
    "argv of -c": code("import sys; print(sys.argv)", "-x", "y"),
    "cwd": script("import os; print(os.getcwd(), os.path.abspath('x'))", says="project/x"),
    "environment": script(
        """
        import os, subprocess
        for given in ("UNICORN_RING_FD", "UNICORN_SNAPSHOT_FDS"):
            os.environ.pop(given, None)
        print(sorted(os.environ.items()))
        os.environ["ADDED"] = "x"
        print(sorted(subprocess.check_output(["env"], text=True).splitlines()))
        """,
        environment={"MINE": "é =x\nsecond line", "EMPTY": ""},
        says="second line",
    ),
    "a variable that is taken away is away": script(
        "import os; print('UNICORN_ROOM' in os.environ, os.getenv('UNICORN_ROOM'))",
        says="False None",
    ),
    "what is read at the start": script(
        """
        import sys, time
        print(time.tzname, hash("a"), list({"a", "b", "c", "d"}), sys.path[1:])
        print(sys.stdin.errors, sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors)
        import warnings; warnings.warn("planted", DeprecationWarning)
        """,
        environment=ELSEWHERE,
        says="JST",
    ),
    "stdin": script(
        "import sys; print(repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdin.fileno(), sys.stdin is sys.__stdin__)",
        says="'' False 0 True",
    ),
    "streams": script(
        """
        import sys
        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(s.encoding, s.errors, s.isatty(), s.fileno(), s.mode, s.name, s.write_through, s.line_buffering)
        print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
        """,
    ),
    "what it writes": script(
        """
        import os, sys
        print("to stdout", end="")
        print("to stderr", file=sys.stderr)
        os.write(1, b"raw\\n")
        sys.stdout.buffer.write(b"bytes\\n"); sys.stdout.flush()
        os.system("echo from a shell; echo and its stderr >&2")
        """,
        says="and its stderr",
    ),
    "path": script("import sys; print(sys.path)"),
    "path of -c": code("import sys; print(sys.path)"),
    "path of a script elsewhere": Row(
        python("deep/train.py"),
        {"deep/train.py": "import sys, near; print(sys.path[0], near.__file__)", "deep/near.py": ""},
        says="near.py",
    ),
    "modules beside it": script(
        "import helper; print(helper.x, helper.__file__, helper.__spec__.origin)",
        files={"helper.py": "x = 1"},
        says="1",
    ),
    "flags": script(
        """
        import sys, warnings
        print(sys.flags, sys.warnoptions, sys._xoptions, sys.path, sys.dont_write_bytecode)
        for s in (sys.stdin, sys.stdout, sys.stderr): print(s.write_through, s.line_buffering, type(s.buffer))
        warnings.warn("planted")
        """,
        flags=FLAGS,
        environment={"PYTHONUNBUFFERED": ""},
        says="safe_path=True",
    ),
    "interpreter": script(
        """
        import sys, locale, gc, threading, decimal
        print(sys.executable, sys.prefix, sys.version, sys.dont_write_bytecode, sys.getrecursionlimit())
        print(locale.getlocale(), sys.getfilesystemencoding(), sys.getdefaultencoding(), sys.getswitchinterval())
        print(gc.isenabled(), gc.get_threshold(), gc.callbacks, sys.gettrace(), sys.getprofile(), decimal.getcontext())
        me = threading.current_thread()
        print(threading.active_count(), me.name, threading.main_thread() is me)
        print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
        """,
    ),
    "warnings": script(
        """
        import warnings
        warnings.warn("first"); warnings.warn("second", DeprecationWarning)
        def deep(): warnings.warn("third", RuntimeWarning, stacklevel=2)
        for _ in range(2): deep()
        """,
        says="train.py:5: RuntimeWarning: third",
    ),
    "asyncio": script("import asyncio; print(asyncio.run(asyncio.sleep(0, 5)))", says="5"),
    "logging": script("import logging; logging.warning('hello'); logging.info('silent')", says="WARNING:root:hello"),
    "source in latin-1": Row(
        python("train.py"), {"train.py": "# coding: latin-1\nprint(len('é'))".encode("latin-1")}, says="1"
    ),
    "source with a mark and returns": Row(
        python("train.py"), {"train.py": b"\xef\xbb\xbfprint('a')\r\nif True:\r\n\tprint('b')\r\n"}, says="b"
    ),
}

# -- modules --------------------------------------------------------------------------------

ABOUT = (
    "import sys; print(__name__, __package__, __spec__.name, __file__, __cached__, __loader__.name, sys.argv, sys.path)"
)

PACKAGE = {
    "package/__init__.py": "print('package', __name__)",
    "package/__main__.py": f"from . import part; {ABOUT}",
    "package/part.py": "print('part', __name__, __package__, __file__)",
    "alone.py": ABOUT,
    "empty/__init__.py": "",
}


def _bytecode() -> bytes:
    """A module that is there as bytecode alone."""
    compiled = compile("print('compiled', __name__)", "compiled.py", "exec")
    return importlib.util.MAGIC_NUMBER + b"\0" * 12 + marshal.dumps(compiled)


_archive = io.BytesIO()
with zipfile.ZipFile(_archive, "w") as _file:
    _file.writestr("__main__.py", "import inner, sys; print(__name__, __file__, sys.argv, sys.path[0], inner.x)")
    _file.writestr("inner.py", "x = 5")

MODULES: dict[str, Row] = {
    "a package": Row(python("-m", "package", "x"), PACKAGE, says="package.__main__"),
    "a module of a package": Row(python("-m", "package.part", "x"), PACKAGE, says="part __main__ package"),
    "a module": Row(python("-m", "alone", "x", "--y"), PACKAGE, says="alone.py"),
    "a module of the library": Row(python("-m", "json.tool", "--help"), says="usage"),
    "a module that is not there": Row(python("-m", "nosuch"), normal=last_line, says="No module named nosuch"),
    "a module of a package that is not there": Row(python("-m", "nosuch.part"), normal=last_line, says="nosuch"),
    "a package that can not be run": Row(python("-m", "empty"), PACKAGE, normal=last_line, says="empty"),
    "a module that raises": Row(python("-m", "bad"), {"bad.py": "1 / 0"}, normal=last_line, says="ZeroDivisionError"),
    "a module from its bytecode": Row(
        python("-m", "compiled"), {"compiled.pyc": _bytecode()}, says="compiled __main__"
    ),
    "a folder": Row(
        python("folder", "x"), {"folder/__main__.py": "import sys; print(__file__, sys.argv, sys.path[0])"}
    ),
    "an archive": Row(python("app.pyz", "x"), {"app.pyz": _archive.getvalue()}, says="5"),
    "a module glued to its flag": Row(python("-malone"), PACKAGE, says="alone.py"),
    "code glued to its flag": Row(python("-cprint(5)"), says="5"),
}
