"""How a script can end, and what its process is: rows of the same table."""

from __future__ import annotations

import re

from worker.warm import python
from worker.warm_table import ELSEWHERE, Row, code, script


def killed(name: str) -> Row:
    return script(
        f"import os, signal; print('before', flush=True); os.kill(os.getpid(), signal.{name}); print('after')"
    )


ENDS: dict[str, Row] = {
    "the end": script("x = 1"),
    "exit 0": script("import sys; sys.exit(0)"),
    "exit 3": script("import sys; sys.exit(3)"),
    "exit none": script("import sys; sys.exit()"),
    "exit with a text": script("import sys; print('first'); sys.exit('text é')", says="text é"),
    "exit true": script("import sys; sys.exit(True)"),
    "exit 259": script("import sys; sys.exit(259)"),
    "exit -1": script("import sys; sys.exit(-1)"),
    "exit with a tuple": script("raise SystemExit((1, 2))", says="(1, 2)"),
    "exit by name": script("exit(4)"),
    "quit by name": script("quit('bye')", says="bye"),
    "at once": script("import atexit, os; atexit.register(print, 'never'); print('said'); os._exit(7)", says="said"),
    "an exception": script("def f(): raise ValueError('planted')\nf()", says="ValueError: planted"),
    "an exception of -c": code("def f(): raise ValueError('planted')\nf()", says='File "<string>", line 1, in f'),
    "an exception with a cause": script(
        """
        try:
            1 / 0
        except ZeroDivisionError as wrong:
            raise RuntimeError("planted") from wrong
        """,
        says="direct cause",
    ),
    "an exception with notes": script("e = ValueError('x'); e.add_note('a note'); raise e", says="a note"),
    "an exception group": script("raise ExceptionGroup('many', [ValueError(1), TypeError(2)])", says="many"),
    "an exception in an import": script("import helper", files={"helper.py": "1 / 0"}, says="helper.py"),
    "a script that is no python": script("def f(:\n    pass", says="SyntaxError"),
    "an excepthook": script(
        "import sys; sys.excepthook = lambda *e: print('hook', e[0].__name__, e[1]); raise ValueError('x')", says="hook"
    ),
    "an interrupt": script("raise KeyboardInterrupt", says="KeyboardInterrupt"),
    "an exception in a thread": script(
        "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); print('on')", says="on"
    ),
    "a hook for threads": script(
        """
        import threading
        threading.excepthook = lambda e: print("hook", e.exc_type.__name__)
        t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()
        """,
        says="hook ZeroDivisionError",
    ),
    "atexit": script(
        """
        import atexit
        atexit.register(print, "first registered")
        @atexit.register
        def broken(): raise ValueError("planted")
        atexit.register(print, "last registered")
        print("end")
        """,
        normal=lambda output: re.sub("0x[0-9a-f]+", "0x", output),
        says="first registered",
    ),
    "atexit after an exception": script("import atexit; atexit.register(print, 'still'); 1 / 0", says="still"),
    "a thread goes on": script(
        """
        import threading, atexit
        atexit.register(print, "atexit")
        go = threading.Event()
        def work():
            go.wait(); print("thread")
        threading.Thread(target=work).start()
        threading.Timer(0.01, go.set).start()
        print("main")
        """,
        says="thread",
    ),
    "a daemon thread does not": script(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); print('end')",
        says="end",
    ),
    "an executor": script(
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        pool.submit(print, "submitted")
        """,
        says="submitted",
    ),
    "files left open": script(
        """
        import gzip, csv, io
        text = open("text.txt", "w"); text.write("text")
        raw = open("raw.bin", "wb"); raw.write(b"raw")
        packed = gzip.GzipFile("packed.gz", "wb", mtime=0); packed.write(b"packed" * 100)
        both = io.TextIOWrapper(io.BufferedWriter(io.FileIO("both.txt", "w"))); both.write("both")
        def hidden():
            f = open("hidden.txt", "w"); f.write("hidden"); hidden.kept = [f]
        hidden()
        rows = csv.writer(open("rows.csv", "w")); rows.writerow([1, 2])
        """,
    ),
    "files left open after an exception": script("f = open('f.txt', 'w'); f.write('x'); 1 / 0"),
    "finalizers": script(
        """
        import tempfile, weakref, pathlib
        class Thing: ...
        thing = Thing(); weakref.finalize(thing, print, "finalized")
        folder = tempfile.TemporaryDirectory(dir="."); (pathlib.Path(folder.name) / "inside.txt").touch()
        """,
        normal=lambda output: output if "finalized" in output and "TemporaryDirectory" not in output else "finalized\n",
    ),
    "output that nobody flushed": script(
        "import sys; sys.stdout.write('no newline')", environment={"PYTHONUNBUFFERED": ""}
    ),
    "SIGTERM": killed("SIGTERM"),
    "SIGKILL": killed("SIGKILL"),
    "SIGSEGV": killed("SIGSEGV"),
    "SIGABRT": killed("SIGABRT"),
    "SIGHUP": killed("SIGHUP"),
    "SIGUSR1": killed("SIGUSR1"),
    "SIGINT": killed("SIGINT"),
    "SIGPIPE": killed("SIGPIPE"),
    "SIGALRM": killed("SIGALRM"),
    "abort": script("import os; os.abort()"),
    "a null pointer": script("import ctypes; ctypes.string_at(0)"),
    "a handler of its own": script(
        """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        os.kill(os.getpid(), signal.SIGTERM)
        """
    ),
    "a pipe that broke": script("import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')", says="BrokenPipeError"),
}

# -- the process ----------------------------------------------------------------------------

PROCESS: dict[str, Row] = {
    "signal handlers": script(
        "import signal; print([(s, str(signal.getsignal(s))) for s in sorted(signal.valid_signals())])"
    ),
    "signals ignored and blocked": script(
        "print([l for l in open('/proc/self/status') if l.startswith(('SigIgn', 'SigBlk', 'SigPnd'))])"
    ),
    "descriptors of programs": script("import os; os.system('ls /proc/self/fd | head -3 | xargs echo')", says="0 1 2"),
    "descriptors of programs that ask for all": script(
        """
        import subprocess
        print(subprocess.run(["sh", "-c", "echo /proc/self/fd/*"], close_fds=False, stdout=subprocess.PIPE).stdout)
        """,
    ),
    "its own descriptors": script(
        """
        import json, os
        line = json.loads(os.environ.get("UNICORN_SNAPSHOT_FDS", "{}")).get("bell", 0)  # a socket has no name
        def target(n):
            try: return os.readlink(f"/proc/self/fd/{n}")
            except OSError: return ""
        theirs = (n for n in os.listdir("/proc/self/fd") if "unicorn-" not in target(n) and int(n) > 2)
        print(sorted(target(n) for n in theirs if int(n) != line))
        """,
    ),
    "limits": script(
        """
        import os, resource
        print(os.umask(0), [resource.getrlimit(i) for i in range(16)], os.nice(0), sorted(os.sched_getaffinity(0)))
        print(os.getuid(), os.getgroups(), os.getsid(0) == os.getpid() == os.getpgrp())
        print(open("/proc/self/oom_score_adj").read())
        """,
    ),
    "fork": script(
        """
        import os
        pid = os.fork()
        if pid == 0: print("child", flush=True); os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        says="child",
    ),
    "its own program again": script(
        """
        import subprocess, sys
        if len(sys.argv) == 1:
            print(subprocess.run([sys.executable, __file__, "again"], capture_output=True, text=True))
        else:
            print("again", sys.argv)
        """,
        says="again",
    ),
    "exec of itself": script(
        """
        import os, sys
        if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, "x"])
        print("second", sys.argv)
        """,
        says="second",
    ),
}

POOL = """
import multiprocessing, os, sys
class Point:
    def __init__(self, x): self.x = x
def double(p):
    return Point(p.x * 2), __name__, sys.argv, multiprocessing.current_process().name != "MainProcess"
if __name__ == "__main__":
    with multiprocessing.get_context("METHOD").Pool(2) as pool:
        for point, name, argv, other in pool.map(double, [Point(1), Point(2)]):
            print(point.x, name, argv, other)
    print(multiprocessing.current_process(), multiprocessing.parent_process())
    queue = multiprocessing.get_context("METHOD").SimpleQueue()
    child = multiprocessing.get_context("METHOD").Process(target=queue.put, args=(os.getcwd(),))
    child.start(); print(queue.get()); child.join(); print(child.exitcode, len(multiprocessing.active_children()))
"""

PROCESSES: dict[str, Row] = {
    **{method: script(POOL.replace("METHOD", method), "x") for method in ("fork", "spawn", "forkserver")},
    "spawn from a module": Row(
        python("-m", "package.pool"), {"package/__init__.py": "", "package/pool.py": POOL.replace("METHOD", "spawn")}
    ),
    "an executor of processes": script(
        """
        from concurrent.futures import ProcessPoolExecutor
        if __name__ == "__main__":
            with ProcessPoolExecutor(2) as pool: print(sum(pool.map(abs, [-1, -2])))
        """,
        says="3",
    ),
}

TORCH: dict[str, Row] = {
    "loader processes": script(
        """
        import torch
        from torch.utils.data import DataLoader
        class Squares(torch.utils.data.Dataset):
            def __len__(self): return 6
            def __getitem__(self, i): return torch.tensor(i * i)
        if __name__ == "__main__":
            print([b.tolist() for b in DataLoader(Squares(), batch_size=2, num_workers=2)])
            kept = iter(DataLoader(Squares(), num_workers=2)); print(next(kept))
        """,
        says="[[0, 1], [4, 9], [16, 25]]",
    ),
    "torch": script(
        """
        import ctypes, random, numpy, torch
        print(torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed() != 0)
        big = torch.ones(600, 600, requires_grad=True)
        for _ in range(3): (big @ big).sum().backward()
        print(big.grad.sum(), torch.ones(1 << 20).sum())
        blas = {line.split()[5] for line in open("/proc/self/maps") if "openblas" in line}
        print([ctypes.CDLL(path).scipy_openblas_get_num_threads64_() for path in blas])
        torch.manual_seed(1); numpy.random.seed(1); random.seed(1)
        print(torch.rand(2), numpy.random.rand(2), random.random(), torch.initial_seed())
        """,
        environment=ELSEWHERE,
        says="2 torch.float32 True True",
    ),
}

# -- other programs -------------------------------------------------------------------------

EXEC: dict[str, Row] = {
    "a shell": Row(["sh", "-c", "echo $0 $1; exit 3", "a", "b c"], says="a b c"),
    "a script of its own": Row(
        ["sh", "-c", "chmod +x run.sh; exec ./run.sh x"], {"run.sh": "#!/bin/sh\necho $0 $@; pwd\n"}, says="./run.sh x"
    ),
    "signals": Row(["sh", "-c", "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status"], says="SigIgn"),
    "a broken pipe": Row(["sh", "-c", "yes | head -1; trap '' INT; kill -INT $$; echo on"], says="on"),
    "death": Row(["sh", "-c", "kill -TERM $$"]),
    "the interpreter with a flag that no template has": Row(
        python("-S", "-c", "import sys; print(sys.flags.no_site)"), says="1"
    ),
    "the interpreter asked for its version": Row(python("-V"), says="Python 3"),
}
