"""Another node: snapshots in memory that it has been given, at which other agents land.

It says on its standard output at which port, and stays until its standard input ends.
"""

from __future__ import annotations

import argparse
import sys

from unicorn_mgr.agent.copies import Copies
from unicorn_mgr.agent.ferry import Pier

HERE = "127.0.0.1"
KEY = "key"
JOB = "bench"


def main() -> None:
    """Serve what lies in these files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=int, nargs="*")
    copies = Copies(1 << 40)
    for file in parser.parse_args().files:
        copies.add_own(f"{JOB}/{file}", JOB, (file,))
    pier = Pier(copies, None)
    pier.key = KEY
    print(pier.open(HERE), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
