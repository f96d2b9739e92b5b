"""The job of the tests of pipelines: a model cut into stages, in float64; without an agent it trains alone.

With FSDP2 along `shard` and tensor parallelism along `tensor` where a replica has those axes, too.
"""

from __future__ import annotations

from typing import Any

import torch
from splitting import BATCH, CLASSES, HIDDEN, WIDTH, Diary, batch_of, options
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import unicorn_mgr as unicorn

BLOCKS = 4


class Block(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH) if first else nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.drop = nn.Dropout(0.1 if first else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))
        return y


class Model(nn.Module):
    """The whole of it, or what is left of it in a stage.

    Only the first block has buffers, only the last stage a parameter that nothing uses.  Only the first block draws
    random numbers: those are the same with and without a pipeline.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): Block(i == 0) for i in range(BLOCKS)})
        self.out: nn.Module | None = nn.Linear(WIDTH, CLASSES)
        self.unused: nn.Parameter | None = nn.Parameter(torch.ones(3))

    def keep(self, stage: int, stages: int) -> None:
        """Only what belongs to a stage."""
        for i in range(BLOCKS):
            if i * stages // BLOCKS != stage:
                del self.blocks[str(i)]
        if stage < stages - 1:
            self.out = self.unused = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x if self.out is None else self.out(x)


def loss_fn(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, wanted, reduction="sum")


def cut(model: Model, mesh: Any, axes: list[str]) -> PipelineStage | None:
    """As torch documents it: one stage of the pipeline is left, then tensor parallelism, then FSDP2."""
    pipeline = mesh["pipeline"] if "pipeline" in axes else None
    stage, stages = (pipeline.get_local_rank(), pipeline.size()) if pipeline is not None else (0, 1)
    model.keep(stage, stages)
    for block in model.blocks.values():
        if "tensor" in axes:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if "shard" in axes:
            fully_shard(block, mesh=mesh["shard"])
    if "shard" in axes:
        fully_shard(model, mesh=mesh["shard"])
    if pipeline is None:
        return None
    return PipelineStage(model, stage, stages, torch.device("cpu"), group=pipeline.get_group())


def main() -> None:
    parser = options(axes="pipeline")
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    diary = Diary(args.out, args.pace)
    torch.set_default_dtype(torch.float64)

    with unicorn.attach() as job:
        mesh = job.replica_mesh(*args.axes)
        torch.manual_seed(1)
        model = Model()
        stage = cut(model, mesh, args.axes) if mesh is not None else None
        schedule = Schedule1F1B(stage, args.at_once, loss_fn=loss_fn) if stage is not None else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0 / (1 + s))
        training = job.train(
            model, optimizer, args.micro_batches, {"scheduler": scheduler}, stages=stage or (), bucket_bytes=2048
        )
        for step in training.steps(args.steps):
            if schedule is None:
                for number in step.micro_batches():
                    if step.counts:
                        diary.computes(step, number)
                        diary.take_time()
                    x, wanted = batch_of(step.number, number)
                    step.backward(loss_fn(model(x), wanted), weight=BATCH)
            else:
                for share in step.shares(args.at_once):
                    for number in (n for n, counts in zip(share.numbers, share.counts, strict=True) if counts):
                        diary.computes(step, number)
                        diary.take_time()
                    batches = [batch_of(step.number, number) for number in share.numbers]
                    schedule.step(torch.cat([x for x, _ in batches]), target=torch.cat([w for _, w in batches]))
                    share.weigh([BATCH] * args.at_once)
            step.clip_grad_norm(0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if job.is_leader:
                print(f"step {step.number} loss {step.metrics['loss']:.12f} size {job.size}", flush=True)
    diary.end(model, scheduler.get_last_lr(), loss=step.metrics["loss"])


if __name__ == "__main__":
    main()
