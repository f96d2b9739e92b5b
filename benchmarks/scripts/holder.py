"""Another node: it has a state in each of the places from which one is brought back.

A live replica's tensors on offer, a snapshot in memory at which other agents land, a checkpoint in a directory; and
a plain socket that sends as many bytes as fast as it can.  It says where on its standard output, and stays until its
standard input ends.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import sys
import threading

import torch

from unicorn_mgr.agent.copies import Copies
from unicorn_mgr.agent.ferry import Pier
from unicorn_mgr.model import Epoch, Lineage, Mark, StatePart
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.checkpoint import Checkpointer, CheckpointSettings
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.snapshot import Buffer, Draft
from unicorn_mgr.worker.state import Packed, Progress
from unicorn_mgr.worker.transfer import Donor, Offer, bytes_of

HERE = "127.0.0.1"
EPOCH = Epoch(1, 1)
STEP = 7
MARK = Mark(STEP, Lineage(0, EPOCH))
PART = StatePart("bench", "", 0)
OF = {"job": PART.job_id, "position": PART.position, "axes": {}}
KEY = "key"
MODEL = {"parameters": "p", "buffers": "b"}
TENSORS = 8
CHUNK_BYTES = 4 << 20
TAKERS = 1000


class Block(torch.nn.Module):
    """So many bytes of parameters; with momentum twice as many of state."""

    def __init__(self, size_bytes: int, value: float) -> None:
        super().__init__()
        count = size_bytes // 4 // TENSORS
        self.parts = torch.nn.ParameterList(torch.full((count,), value + i) for i in range(TENSORS))


def replica(megabytes: int, value: float = 0.0) -> Replica:
    """With so much state."""
    model = Block((megabytes << 20) // 2, value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return Replica(model, [optimizer], {})


def packed(of: Replica) -> Packed:
    """Its state."""
    return of.state.collect(Progress(STEP, -1, 0), randomness.capture())


def checkpointer(folder: str) -> Checkpointer:
    """Of a script that trains alone."""
    found = Checkpointer(CheckpointSettings(folder, 1, 1, "bench", -1), lambda _: None, Drills(), alone=True)
    found.set_fingerprint(MODEL)
    return found


def in_memory(state: Packed) -> int:
    """A committed snapshot."""
    file = os.memfd_create("snapshot")
    buffer, draft = Buffer(file), Draft(MARK, OF, state)
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    buffer.seal()
    buffer.commit()
    return file


def _send_raw(listener: socket.socket, file: int, size: int) -> None:
    with mmap.mmap(file, size) as memory, memoryview(memory) as whole:
        while True:
            line, _ = listener.accept()
            with line:
                for at in range(0, size, CHUNK_BYTES):
                    line.sendall(whole[at : at + CHUNK_BYTES])


def main() -> None:
    """Have it everywhere, and say where."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, required=True)
    parser.add_argument("--stored", required=True)
    args = parser.parse_args()
    mine = replica(args.megabytes, 1.0)
    state = packed(mine)
    file = in_memory(state)
    size = os.fstat(file).st_size
    copies = Copies(1 << 40)
    copies.add_own("bench/0.0", "bench", (file,))
    pier = Pier(copies, None)
    pier.key = KEY
    header = json.dumps({**state.described(), "checksum": None}).encode()
    body = [bytes_of(t.detach()) for t in state.tensors if t.numel()]
    donor = Donor(HERE, lambda: None)
    donor.open(EPOCH, KEY)
    donor.offer("state", Offer(header, body, TAKERS))
    keeper = checkpointer(args.stored)
    keeper.take(state, STEP, EPOCH, 0)
    keeper.committed(STEP)
    keeper.wait_until_idle()
    listener = socket.create_server((HERE, 0))
    threading.Thread(target=_send_raw, args=(listener, file, size), daemon=True).start()
    ports = {"raw": listener.getsockname()[1], "pier": pier.open(HERE), "donor": donor.port}
    print(json.dumps({**ports, "size": size, "state": state.size_bytes}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
