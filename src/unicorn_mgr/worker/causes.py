"""What an exception says, with those that it was raised from: what is wrong may be known from them alone."""

from __future__ import annotations

CAUSES_MAX = 4
CHARACTERS_MAX = 1000


def message_of(raised: BaseException) -> str:
    """Its message, and type and message of each that it was raised from; all cut where they are long."""
    said, cause = [str(raised)[:CHARACTERS_MAX]], raised.__cause__
    while cause is not None and len(said) < CAUSES_MAX:
        said.append(f"{type(cause).__qualname__}: {cause}"[:CHARACTERS_MAX])
        cause = cause.__cause__
    return "; caused by ".join(said)
