"""Mistakes of the user that a worker finds: no restart can cure them."""

from __future__ import annotations

from unicorn_mgr.messages import Mistake


class MistakeError(Exception):
    """The user has to change something; the message names the field, the value and the fix."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake
