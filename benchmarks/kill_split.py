"""`kill -9` of workers of a job whose model is split over two workers each, at random moments."""

from __future__ import annotations

from typing import Any

from benchmarks import kill
from benchmarks.cluster import cluster
from benchmarks.result import Found, Options

TITLE = "kill -9 of one of four workers, two replicas of two by FSDP2"
REPLICAS, SHARDS = 2, 2


def run(options: Options) -> Found:
    """As `kill`: the victim's sibling is gone with it, the other replica goes on."""
    size = REPLICAS * SHARDS
    with cluster(options.folder, REPLICAS, kill.SETTINGS, slots=SHARDS) as found:
        spec: dict[str, Any] = {"replica": {"shard": SHARDS}, "replica_size": SHARDS, "size_min": SHARDS}
        job = found.submit("gpt", size, "gpt.py", "--split", **spec)
        return kill.report(kill.measured(job, options))
