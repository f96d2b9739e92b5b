"""A training script that knows nothing of this product: torch.distributed under env://, as torchrun starts it.

All is at the top level: torch 2.13 may hang, under any launcher, when a function that holds a
DistributedDataParallel returns (its destructor waits for a thread that waits for the interpreter).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--die", default="", help="RANK:STEP, in the first start")
parser.add_argument("--how", default="kill", choices=["kill", "raise", "exit"])
parser.add_argument("--gate", default="", help="RANK:FIFO: it waits before it meets the others")
args = parser.parse_args()

start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
if args.gate.startswith(f"{rank}:"):
    Path(args.gate.partition(":")[2]).read_bytes()
distributed.init_process_group("gloo")
torch.manual_seed(rank)  # DistributedDataParallel hands out rank 0's parameters
model = DistributedDataParallel(nn.Linear(4, 1).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(args.steps):
    if start == 0 and args.die == f"{rank}:{step}":
        if args.how == "raise":
            raise ValueError("planted")
        if args.how == "exit":
            sys.exit(7)
        os.kill(os.getpid(), 9)
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()

ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size())]
distributed.all_gather(ranks, torch.tensor([rank]))
told = {
    "environment": dict(os.environ),
    "ranks": [int(r) for r in ranks],
    "weights": [p.flatten().tolist() for p in model.parameters()],
}
(args.out / f"ended-{start}-{rank}.json").write_text(json.dumps(told))
distributed.barrier()
distributed.destroy_process_group()
