"""The job of the tests of replicas: a model split over several workers, in float64.

With FSDP2 along `shard`, tensor parallelism along `tensor`; without an agent it trains alone.
The loss function itself records each call.
"""

from __future__ import annotations

import torch
from splitting import BATCH, CLASSES, HIDDEN, WIDTH, Diary, batch_of, options
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import unicorn_mgr as unicorn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))
        return y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.out(x)
        return logits


def split(model: Model, job: unicorn.Job, axes: list[str]) -> None:
    """As torch documents it: tensor parallelism first, then FSDP2."""
    mesh = job.replica_mesh(*axes)
    if mesh is None:
        return
    if "tensor" in axes:
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if "shard" in axes:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])


def main() -> None:
    parser = options(axes="shard")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--raise-at", default="", help="STEP:NUMBER")
    args = parser.parse_args()
    diary = Diary(args.out, args.pace)
    torch.set_default_dtype(getattr(torch, args.dtype))
    with unicorn.attach() as job:
        torch.manual_seed(1)
        model = Model()
        split(model, job, args.axes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0 / (1 + s))
        training = job.train(model, optimizer, args.micro_batches, state={"scheduler": scheduler}, bucket_bytes=2048)
        for step in training.steps(args.steps):
            for number in step.micro_batches():
                if step.counts:
                    diary.computes(step, number)
                if args.raise_at == f"{step.number}:{number}" and step.counts and not step.rehearsal:
                    raise ValueError(f"planted: micro-batch {number} of step {step.number}")
                diary.take_time()
                x, wanted = batch_of(step.number, number)
                loss = nn.functional.cross_entropy(model(x), wanted, reduction="sum")
                step.backward(loss, weight=BATCH)
            if "tensor" in args.axes:
                step.clip_grad_norm(0.5)  # torch's own wants all parameters on the same mesh
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if job.is_leader:
                print(f"step {step.number} loss {step.metrics['loss']:.12f} size {job.size}", flush=True)
    diary.end(model, scheduler.get_last_lr())


if __name__ == "__main__":
    main()
