"""The micro-batches that are open on this worker: one, or the several that a pipeline takes at once."""

from __future__ import annotations

from unicorn_mgr.phases import Phase
from unicorn_mgr.ring import RingWriter
from unicorn_mgr.worker.randomness import MicroBatchRandom
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.shares import Turn
from unicorn_mgr.worker.siblings import Place


class Opened:
    """What is computed here at the moment."""

    def __init__(self, replica: Replica, seed: int, place: Place, ring: RingWriter) -> None:
        self.turns: tuple[Turn, ...] = (Turn(-1, ()),)
        """Those that are open, or were last."""
        self.tells = place.speaks
        """Of a micro-batch that this worker computes it is the one that knows the loss and tells it."""
        self._replica = replica
        self._random = MicroBatchRandom(seed)
        self._speaks = place.speaks
        self._ring = ring
        self._step = -1

    @property
    def turn(self) -> Turn:
        """The only one."""
        return self.turns[0]

    def counts(self, turn: Turn) -> bool:
        """Whether it is this worker that counts it; exactly one of its replica does."""
        return turn.counts and self.tells

    def open(self, step: int, turns: tuple[Turn, ...]) -> None:
        """They are about to be computed."""
        self._step, self.turns = step, turns
        self._replica.gradients.expect(last=False)
        self.enter(turns[0])

    def enter(self, turn: Turn, stage: int = 0) -> None:
        """The forward of one begins, in this stage of the model."""
        self._random.enter(self._step, turn.number, stage)
        self.show(turn)

    def show(self, turn: Turn) -> None:
        """It is this one that is computed."""
        self._ring.step, self._ring.micro_batch = self._step, turn.number
        self._ring.write(Phase.COMPUTE)

    def pause(self) -> None:
        """The schedule of a pipeline waits for what other stages compute."""
        self._ring.write(Phase.STAGE)

    def note(self, turn: Turn) -> None:
        """Take note of what the model has done to its buffers, once in a replica."""
        if turn.counts and self._speaks:
            self._replica.buffers.took(turn.number)
        else:
            self._replica.buffers.put_back()

    def close(self) -> tuple[int, ...]:
        """Their backward has returned; these numbers are now held by the replica."""
        self._ring.micro_batch = -1
        self._ring.write(Phase.COMPUTE)
        return tuple(number for turn in self.turns for number in turn.round)

    def leave(self) -> None:
        """No other micro-batch follows at once."""
        self._random.leave()
