"""From a forked template to the first line of the user's script, as plain python would run it.

The script runs in a fresh `__main__` module, not by runpy: run_path drops the script's
globals while it holds the interpreter lock, and gloo's destructor then waits for a thread
that wants it (12 of 30 hung at exit).  The process ends by os._exit after atexit handlers
and flushes, since torch has a race of its own in the interpreter's teardown.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.machinery
import io
import json
import os
import pkgutil
import random
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from unicorn_mgr.worker.causes import message_of

STACKS_SIGNAL = signal.SIGRTMIN + 7
"""faulthandler writes all stacks to the last words when the worker gets this."""

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables by which libraries start threads when they are loaded; a worker gets its number after the fork."""

LAST_WORDS_BYTES_MAX = 64_000

_ENV_START = 47
"""Where /proc/PID/stat has the address of the environment, counted behind the command's name."""


def preload(names: Iterable[str]) -> None:
    """Import what scripts need most, without any thread.  A module that is not installed is left out."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(asked: dict[str, Any], ring: int, words: int, snapshots: dict[str, Any]) -> int:
    """In the child: become what was asked for; returns the exit code."""
    _reset_signals()
    _redirect(asked["log"])
    os.environ.clear()
    os.environ.update(asked["env"])
    os.environ["UNICORN_RING_FD"] = str(ring)
    os.environ["UNICORN_SNAPSHOT_FDS"] = json.dumps(snapshots)
    _show_whose(asked["env"])
    _open_streams()
    os.chdir(asked["cwd"])
    if asked["kind"] == "exec":
        return _exec(asked["argv"], {ring, *snapshots["found"]})
    _reset_python(asked["argv"], asked["original"])
    _report_last_words(words)
    _reset_torch()
    return _run_to_end(asked["kind"], asked["target"], asked["first"])


def be_porter(log: str, environment: dict[str, str], folder: str) -> None:
    """In a child that is no worker, and does something for one: have its output, its environment and its folder."""
    os.setsid()
    _reset_signals()
    _redirect(log)
    os.environ.clear()
    os.environ.update(environment)
    _open_streams()
    os.chdir(folder)


# -- the process ----------------------------------------------------------------------------


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _redirect(log: str) -> None:
    """Output goes to a file, not through the agent, which may restart."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(nothing)
    os.close(out)


def _open_streams() -> None:
    """As the interpreter opens them, but that a line shows at once: the last one explains a death."""
    sys.stdin = _stream(sys.stdin, 0, "<stdin>", "r")
    sys.stdout = _stream(sys.stdout, 1, "<stdout>", "w")
    sys.stderr = _stream(sys.stderr, 2, "<stderr>", "w")
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def _stream(like: TextIO, number: int, name: str, mode: str) -> io.TextIOWrapper:
    """`like` is the template's own, which the interpreter has opened under the same settings."""
    asked = not sys.flags.ignore_environment and os.environ.get("PYTHONUNBUFFERED")
    unbuffered = bool(asked or getattr(like, "write_through", False))
    bare = unbuffered and mode == "w"
    # The stream that is made of it closes it.
    binary: Any = open(number, f"{mode}b", 0 if bare else -1, closefd=False)  # noqa: SIM115 - see above
    (binary if bare else binary.raw).name = name
    by_line = mode == "w" and not unbuffered
    stream = io.TextIOWrapper(
        binary, like.encoding, like.errors, "\n", line_buffering=by_line, write_through=unbuffered
    )
    vars(stream)["mode"] = mode
    return stream


def _show_whose(environment: dict[str, str]) -> None:
    """Say in /proc/PID/environ whose worker this is.

    A fork shows its parent's environment there for ever, so whoever looks for the workers of
    an agent would not find it.  Nothing else reads this memory any more.
    """
    marks = "".join(f"{k}={v}\0" for k, v in environment.items() if k in ("UNICORN_AGENT", "UNICORN_WORKER")).encode()
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(stat[_ENV_START]), int(stat[_ENV_START + 1])
    if len(marks) <= end - begin:
        # Where that is forbidden an agent that looks for forgotten workers overlooks this one.
        with contextlib.suppress(OSError), Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(marks.ljust(end - begin, b"\0"))


def _exec(argv: list[str], kept: set[int]) -> int:
    for file in kept:
        os.set_inheritable(file, True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # the interpreter ignores them; other programs count on them
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as failed:
        sys.stderr.write(f"unicorn: {argv[0]}: {failed.strerror}\n")
    return 127


# -- the interpreter ------------------------------------------------------------------------


def _reset_python(argv: list[str], original: list[str]) -> None:
    sys.argv[:] = argv
    sys.orig_argv[:] = original
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        vars(process)["ORIGINAL_DIR"] = str(Path.cwd())  # spawn finds a relative script from here
        process.current_process().authkey = os.urandom(32)
    random.seed()


def _reset_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(_threads(("OMP_NUM_THREADS",)))
    torch.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
        if (threads := _threads(THREADS)) > 1:
            _set_openblas_threads(threads)


def _threads(variables: tuple[str, ...]) -> int:
    """The first number that is set, as the libraries read it; without one they take every core."""
    said = (os.environ.get(name, "").strip() for name in variables)
    return next((int(n) for n in said if n.isdecimal() and int(n) > 0), len(os.sched_getaffinity(0)))


def _set_openblas_threads(threads: int) -> None:
    """The library for matrices inside numpy, if it is this one."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    for path in sorted({line.split(maxsplit=5)[5] for line in maps if "openblas" in line and line.count("/")}):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(threads)
                break


def _report_last_words(words: int) -> None:
    """Exceptions and fatal signals leave their traceback where the agent finds it."""
    file = os.fdopen(words, "wb", buffering=0, closefd=False)
    faulthandler.enable(file, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file, all_threads=True, chain=False)

    def write(kind: str, raised: BaseException | None, trace: types.TracebackType | None) -> None:
        if raised is None or isinstance(raised, SystemExit):
            return
        text = "".join(traceback.format_exception(type(raised), raised, trace))
        said = {
            "kind": kind,
            "type": type(raised).__qualname__,
            "message": message_of(raised),
            "traceback": text[-16000:],
        }
        line = json.dumps(said).encode() + b"\n"
        if os.fstat(words).st_size + len(line) < LAST_WORDS_BYTES_MAX:
            file.write(line)

    plain = threading.excepthook

    def in_thread(raised: threading.ExceptHookArgs) -> None:
        write("thread", raised.exc_value, raised.exc_traceback)
        plain(raised)

    threading.excepthook = in_thread
    global _last_words  # noqa: PLW0603 - one per process, set once after the fork
    _last_words = write


def _no_last_words(kind: str, raised: BaseException | None, trace: types.TracebackType | None) -> None:
    del kind, raised, trace


_last_words = _no_last_words


# -- the script -----------------------------------------------------------------------------


def _run_to_end(kind: str, target: str, first: str) -> int:
    """Run the user's code, then what the interpreter does at exit; returns the exit code."""
    code = _run_guarded(kind, target, first)
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself calls at its end
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - as at any interpreter's exit: shown, and the code stays
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed it, or put anything in its place
            stream.flush()
    _close_files()
    return code


def _close_files() -> None:
    """Files that the script has left open get what was written to them: no interpreter's end does it for us."""
    kind = io.IOBase.__base__  # not the abstract class, which would ask every object what it is
    assert kind is not None
    left = [found for found in gc.get_objects() if issubclass(type(found), kind)]
    buffers = (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
    left.sort(key=lambda file: (isinstance(file, buffers), not isinstance(file, io.TextIOBase)))
    for file in left:  # whatever writes through another one comes before it
        if not isinstance(file, io.RawIOBase):
            with contextlib.suppress(Exception):  # where it should go is full or gone: so it is at an interpreter's end
                file.close()


def _run_guarded(kind: str, target: str, first: str) -> int:
    try:
        _run_main(kind, target, first)
    except SystemExit as asked:
        return _exit_code(asked)
    except KeyboardInterrupt:
        _show(*sys.exc_info())
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130
    except BaseException:  # noqa: BLE001 - the user's exception ends the user's process, as it would anywhere
        _show(*sys.exc_info())
        return 1
    return 0


def _exit_code(asked: SystemExit) -> int:
    if asked.code is None:
        return 0
    if isinstance(asked.code, int):
        return asked.code & 0xFF
    sys.stderr.write(f"{asked.code}\n")
    return 1


def _show(kind: type[BaseException] | None, raised: BaseException | None, trace: types.TracebackType | None) -> None:
    """The traceback from the user's first frame on, by the user's excepthook."""
    assert kind is not None
    assert raised is not None
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    raised.__traceback__ = inner
    _last_words("main", raised, inner)
    sys.excepthook(kind, raised, inner)


def _run_main(kind: str, target: str, first: str) -> None:
    """Execute the target in a new `__main__`; `first` is where it finds its own modules."""
    if not sys.flags.safe_path:
        sys.path[0] = first  # the template's own first entry makes way
    main = types.ModuleType("__main__")
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    if kind == "module":
        code = _prepare_module(main, target)
        sys.argv[0] = str(main.__file__)
    elif kind == "code":
        main.__loader__ = importlib.machinery.BuiltinImporter
        code = compile(target, "<string>", "exec", dont_inherit=True)
    elif pkgutil.get_importer(target) is not None:
        sys.path.insert(0, target)  # a folder or an archive with a program in it
        code = _prepare_module(main, "__main__")
    else:
        code = _prepare_script(main, target)
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the purpose


def _prepare_script(main: types.ModuleType, target: str) -> types.CodeType:
    try:
        source = Path(target).read_bytes()
    except OSError as failed:
        sys.stderr.write(f"{sys.executable}: can't open file {target!r}: [Errno {failed.errno}] {failed.strerror}\n")
        raise SystemExit(2) from None
    main.__file__ = target
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", target)
    vars(main)["__cached__"] = None
    return compile(source, target, "exec", dont_inherit=True)


def _prepare_module(main: types.ModuleType, name: str) -> types.CodeType:
    """As -m does it; nobody but the interpreter's own runpy knows all the ways a module can be there."""
    inside: Any = runpy
    details = inside._get_main_module_details if name == "__main__" else inside._get_module_details
    try:
        _, spec, code = details() if name == "__main__" else details(name, inside._Error)
    except inside._Error as wrong:
        raise SystemExit(f"{sys.executable}: {wrong}") from None
    main.__file__, main.__spec__, main.__package__, main.__loader__ = spec.origin, spec, spec.parent, spec.loader
    vars(main)["__cached__"] = spec.cached
    found: types.CodeType = code
    return found
