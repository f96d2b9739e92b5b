"""What lets an agent leave or take copies of snapshots at another: made by the coordinator, checked by the other."""

from __future__ import annotations

import hashlib
import hmac


def token(key: str, job_id: str, position: int, by: str) -> str:
    """For one part of one job, in the hands of the agent of node `by`; `key` is that of the node it lets in at."""
    return hmac.new(key.encode(), f"{job_id} {position} {by}".encode(), hashlib.sha256).hexdigest()


def lets_in(shown: str, key: str, job_id: str, position: int, by: str) -> bool:
    """What has been shown is that token; with no key there is none."""
    return bool(key) and hmac.compare_digest(shown.encode(), token(key, job_id, position, by).encode())
