"""What lets an agent leave or take copies of snapshots at another: made by the coordinator, checked by the other."""

from __future__ import annotations

import hashlib
import hmac

from unicorn_mgr.model import StatePart


def token(key: str, part: StatePart, by: str) -> str:
    """For one part of a job's state, in the hands of the agent of node `by`; `key` is the node's it lets in at."""
    return hmac.new(
        key.encode(), f"{part.job_id} {part.shape} {part.position} {by}".encode(), hashlib.sha256
    ).hexdigest()


def lets_in(shown: str, key: str, part: StatePart, by: str) -> bool:
    """What has been shown is that token; with no key there is none."""
    wanted = token(key, part, by)
    return bool(key) and hmac.compare_digest(shown.encode(), wanted.encode())
