"""unicorn-mgr: a cluster-wide workload manager for LLM training that heals itself.

A training script needs two names from here::

    import unicorn_mgr as unicorn

    with unicorn.attach() as job:
        training = job.train(model, optimizer, micro_batches=32)

They are loaded on first use, so that the coordinator and the agent, which share this
package, never import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unicorn_mgr.worker.attach import Job, attach
    from unicorn_mgr.worker.pipeline import Share
    from unicorn_mgr.worker.source import Source
    from unicorn_mgr.worker.training import Step, Training

__version__ = "0.1.0"
__all__ = ["Job", "Share", "Source", "Step", "Training", "__version__", "attach"]

_HOMES = {
    "Job": "unicorn_mgr.worker.attach",
    "Share": "unicorn_mgr.worker.pipeline",
    "Source": "unicorn_mgr.worker.source",
    "Step": "unicorn_mgr.worker.training",
    "Training": "unicorn_mgr.worker.training",
    "attach": "unicorn_mgr.worker.attach",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'unicorn_mgr' has no attribute {name!r}")
