"""A simulated job: its processes, the epoch that they train in, what it has in storage.

It asks for a moment of its own only where something has to be said: the first step in an epoch, a checkpoint, a
member that leaves, the end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from unicorn_mgr.messages import (
    CheckpointComplete,
    CheckpointWritten,
    Fact,
    Formed,
    FreshStart,
    GiveUp,
    Granted,
    Leaving,
    LoopEnded,
    Published,
    Ready,
    Resumed,
    Suspended,
    Symptom,
)
from unicorn_mgr.model import INITIAL, NO_STATE, Epoch, Lineage, Mark
from unicorn_mgr.phases import Phase
from unicorn_mgr.simulator.checkers import Applied
from unicorn_mgr.simulator.run import Run
from unicorn_mgr.simulator.timeline import Timeline
from unicorn_mgr.simulator.trainer import Trainer
from unicorn_mgr.simulator.workload import Workload
from unicorn_mgr.transition.deal import Deal, LateBuckets, LateState, column, deal, standstill

SYMPTOM_SECONDS = 0.002
"""From the death of a process until its peers' collectives fail."""

AGAIN_SECONDS = 0.1
"""Whoever waits for a transfer looks so often whether it has come."""

EXIT_FRESH_START = 75
"""Of a process that has to begin anew before it can begin a job."""

FINGERPRINT = {"script": "simulated"}


class Training:
    """One job of the simulated cluster."""

    def __init__(
        self, name: str, workload: Workload, timeline: Timeline, chance: Random, happens: Callable[[Applied], None]
    ) -> None:
        self.name = name
        self.workload = workload
        self.trainers: dict[str, Trainer] = {}
        self.runs: list[Run] = []
        """By epoch; an older one goes on where nobody has told its members of a newer one."""
        self.stored: Mark | None = None
        """The newest state that a new process would find."""
        self.checkpoint_every = 0
        self._time = timeline
        self._chance = chance
        self._happens = happens

    @property
    def run(self) -> Run | None:
        """The newest."""
        return self.runs[-1] if self.runs else None

    def run_of(self, trainer: Trainer) -> Run | None:
        """The one that this process is in."""
        return next((run for run in self.runs if run.epoch == trainer.formed and trainer in run.members), None)

    def step_seconds(self, trainer: Trainer) -> float:
        """Of the epoch that it is in; 0 if it is in none."""
        run = self.run_of(trainer)
        return run.pace if run is not None else 0.0

    # -- processes -----------------------------------------------------------------------

    def build(self, trainer: Trainer) -> None:
        """It has attached, and builds its model."""
        trainer.enter(Phase.STARTING, self._time.now)

        def built() -> None:
            if trainer.acts and not trainer.ready and trainer.give_up is None:
                trainer.ready = True
                trainer.enter(Phase.WAITING, self._time.now)
                self.say(trainer, Ready(dict(FINGERPRINT), rehearsed=True))
                self.hear(trainer)

        self._time.after(self.workload.build_seconds * trainer.slowness, built)

    def say(self, trainer: Trainer, fact: Fact) -> None:
        """Tell the agent of its node, and once more if that begins anew."""
        trainer.told[type(fact)] = fact
        trainer.machine.said(trainer, fact)

    def end(self, trainer: Trainer) -> None:
        """Its process is gone, however that came about."""
        trainer.alive = False
        run = self.run_of(trainer)
        if run is not None:
            run.disturb()
            if not trainer.machine.power:
                return  # nobody closes its connections
            for other in run.members:
                if other is not trainer and other.alive:
                    self._time.at(other.computed_at + SYMPTOM_SECONDS, self._symptom_of(other, run.epoch))

    def _symptom_of(self, trainer: Trainer, epoch: Epoch) -> Callable[[], None]:
        def tell() -> None:
            told = trainer.told.get(Symptom)
            fresh = not isinstance(told, Symptom) or told.epoch < epoch
            if trainer.acts and trainer.heard == epoch == trainer.formed and fresh and not trainer.over:
                self.say(trainer, Symptom(epoch, "connection closed by peer"))

        return tell

    def sever(self) -> None:
        """The connections between the members of the newest epoch break: all see an error, and nobody is gone."""
        run = self.run
        if run is None:
            return
        run.disturb()
        run.severed = True
        for trainer in run.members:
            self._time.at(trainer.computed_at + SYMPTOM_SECONDS, self._symptom_of(trainer, run.epoch))

    def hang(self, trainer: Trainer) -> None:
        """Its main thread stands still, for ever."""
        self._disturb(trainer)
        place, _ = trainer.place_at(self._time.now)
        trainer.stop_here(self._time.now)
        trainer.hung = True
        trainer.still = (Phase.COMPUTE if place is Phase.REDUCE else place, self._time.now)

    def stop(self, trainer: Trainer) -> None:
        """All of the process stands still."""
        self._disturb(trainer)
        if trainer.stopped:
            return
        trainer.go_on(self._time.now)
        trainer.stopped = True
        if not trainer.hung:
            trainer.still = (trainer.place_at(self._time.now)[0], self._time.now)

    def go_on(self, trainer: Trainer) -> None:
        """It runs again, from where it was."""
        trainer.stopped = False
        if not trainer.hung:
            trainer.still = None
            trainer.began = self._time.now
            trainer.moved_at = self._time.now
        self.hear(trainer)
        self._mend(trainer)

    def slow(self, trainer: Trainer, slowness: float) -> None:
        """From now on its slot takes so many times longer."""
        self.advance()
        trainer.go_on(self._time.now)
        trainer.slowness = slowness
        run = self.run_of(trainer)
        if run is not None and run.going:
            self._appoint(run)

    def _mend(self, trainer: Trainer) -> None:
        """Nobody is missing in the open step after all."""
        run = self.run_of(trainer)
        if run is None or not run.broken or run.severed or len(run.ready) < len(run.members):
            return
        fine = all(t.acts and t.heard == run.epoch and not t.over for t in run.members)
        same = len({t.applied for t in run.members}) == 1
        if fine and same and not any(Leaving in t.told and t.retiring for t in run.members):
            run.broken = False
            self._appoint(run)

    # -- what it is told -----------------------------------------------------------------

    def granted(self, trainer: Trainer, word: Granted) -> None:
        """A newer membership."""
        if trainer.granted is None or word.epoch > trainer.granted.epoch:
            trainer.granted = word
            self._disturb(trainer)
            self.hear(trainer)

    def retire(self, trainer: Trainer) -> None:
        """Its slot is wanted for something else: it leaves after the open step."""
        trainer.retiring = True
        run = self.run_of(trainer)
        if run is not None:
            run.advance()
            if run.going:
                self._appoint(run)
        elif trainer.acts and trainer.applied == NO_STATE and not trainer.over:
            self._leave_loop(trainer)

    def give_up(self, trainer: Trainer, word: GiveUp) -> None:
        """The job is given up: its processes end."""
        trainer.give_up = word
        if trainer.acts:
            self._disturb(trainer)
            self._leave_loop(trainer)

    def hear(self, trainer: Trainer) -> None:
        """If it has heard of a newer epoch it acts on that where its loop looks."""
        word = trainer.granted
        if word is None or not trainer.acts or trainer.over or word.epoch <= trainer.published or not trainer.ready:
            return
        if trainer.name not in word.members:
            if trainer.retiring and (Leaving in trainer.told or trainer.applied == NO_STATE):
                self._leave_loop(trainer)
            return
        self._time.at(trainer.looks_at(self._time.now), lambda: self._publish(trainer, word))

    def _publish(self, trainer: Trainer, word: Granted) -> None:
        if not trainer.acts or trainer.over or trainer.granted is not word or trainer.published >= word.epoch:
            return
        now = self._time.now
        if trainer.looks_at(now) > now:
            self.hear(trainer)
            return
        trainer.stop_here(now)
        trainer.published = word.epoch
        trainer.enter(Phase.GATHER, now)
        if trainer.retiring:
            trainer.told.pop(Leaving, None)
        held = trainer.holdings(self.stored)
        self.say(trainer, Published(word.epoch, holdings=held, worker=trainer.name))

    def meets(self, trainer: Trainer, word: Formed) -> None:
        """Everybody has published."""
        granted = trainer.granted
        if granted is None or word.epoch != granted.epoch or trainer.published != word.epoch or not trainer.acts:
            return
        if trainer.formed >= word.epoch:
            return
        self._disturb(trainer)
        trainer.formed = word.epoch
        run = self._run(granted)
        dealt = self._deal(run, granted, word)
        trainer.enter(Phase.TRANSFER, self._time.now)
        self._carry_out(run, trainer, dealt)

    def _run(self, granted: Granted) -> Run:
        """The run of an epoch; those in which nobody is any more are forgotten."""
        found = next((run for run in self.runs if run.epoch == granted.epoch), None)
        if found is not None:
            return found
        members = tuple(self.trainers[m] for m in granted.members if m in self.trainers)
        poison = frozenset((p.step, p.number) for p in granted.poison)
        made = Run(granted.epoch, members, poison, self.workload, self._time, self._chance, self._happens)
        made.broken = len(members) < len(granted.members)
        left = [run for run in self.runs if any(t.alive and t.formed == run.epoch for t in run.members)]
        self.runs = sorted([*left, made], key=lambda run: run.epoch)
        return made

    # -- the deal ------------------------------------------------------------------------

    def _deal(self, run: Run, granted: Granted, word: Formed) -> Deal:
        held = column({self.trainers[p.worker].seat: p.holdings for p in word.members}, 0, 1)
        holdings = {p.worker: held[self.trainers[p.worker].seat] for p in word.members}
        top = max(h.applied for h in holdings.values())
        run.stands_after = standstill(holdings.values()) if granted.suspends else None
        if top > NO_STATE and run.over(top):
            return deal(granted.members, holdings, 0, 0)
        return deal(granted.members, holdings, self.workload.micro_batches, self.workload.buckets)

    def _carry_out(self, run: Run, trainer: Trainer, dealt: Deal) -> None:
        if trainer.name in dealt.voided:
            trainer.held = ()
        route = dealt.late.get(trainer.name)
        seconds = self.workload.form_seconds
        if isinstance(route, LateState):
            trainer.dirty = trainer.dirty or trainer.applied != NO_STATE
            trainer.lose_state()
            seconds += self.workload.state_seconds
        elif trainer.applied == NO_STATE:
            seconds += self.workload.restore_seconds if self.stored is not None else 0.0
        elif route is not None or (any(dealt.reduced) and None in trainer.reduced):
            seconds += self.workload.bucket_seconds
        self._time.after(seconds, lambda: self._exchange(run, trainer, dealt))

    def _exchange(self, run: Run, trainer: Trainer, dealt: Deal) -> None:
        """What it lacks has come, if whoever has it is there; otherwise it waits until that is, or a newer epoch."""
        if trainer.heard != run.epoch or not trainer.alive or trainer.over or trainer.name in run.ready:
            return
        missing = None if trainer.acts else trainer
        if missing is None:
            missing = self._take(run, trainer, dealt)
        if missing is None:
            self._begin(run, trainer, dealt)
        elif missing.alive or not missing.machine.power:
            self._time.after(AGAIN_SECONDS, lambda: self._exchange(run, trainer, dealt))
        else:
            self._time.after(SYMPTOM_SECONDS, self._symptom_of(trainer, run.epoch))

    def _take(self, run: Run, trainer: Trainer, dealt: Deal) -> Trainer | None:
        """Whoever has to be waited for; None if all that was lacking is here."""
        route = dealt.late.get(trainer.name)
        if isinstance(route, LateState) and trainer.applied == NO_STATE:
            source = self.trainers[route.source]
            if not self._gives(run, source) or source.applied == NO_STATE:
                return source
            trainer.applied, trainer.dirty = source.applied, False
            trainer.open((), self._time.now)
        elif trainer.applied == NO_STATE:
            self._found(trainer)
        elif isinstance(route, LateBuckets) and trainer.applied < dealt.step - 1:
            for bucket, name in enumerate(route.sources):
                if name is not None and trainer.reduced[bucket] is None:
                    source = self.trainers[name]
                    if not self._gives(run, source):
                        return source
                    trainer.reduced[bucket] = source.kept[bucket]
            run.apply(trainer, (), self._time.now + self.workload.update_seconds)
        for bucket, name in enumerate(dealt.reduced):
            if name is not None and trainer.reduced[bucket] is None:
                source = self.trainers[name]
                if not self._gives(run, source):
                    return source
                trainer.reduced[bucket] = source.reduced[bucket]
        return None

    def _gives(self, run: Run, source: Trainer) -> bool:
        return source.acts and source.formed == run.epoch and not source.over

    def _found(self, trainer: Trainer) -> None:
        """Nobody has any state: what is stored, or its own initial one, is the job's."""
        if self.stored is None and trainer.dirty:
            self.say(trainer, FreshStart("nobody has the state, and this process has been through a step of it"))
            self._leave_loop(trainer, EXIT_FRESH_START)
            return
        trainer.applied = self.stored.step if self.stored is not None else INITIAL
        trainer.dirty = False
        trainer.open((), self._time.now)

    def _begin(self, run: Run, trainer: Trainer, dealt: Deal) -> None:
        """Compute what was dealt."""
        if trainer.over:
            return
        step, now = trainer.applied + 1, self._time.now
        trainer.go_on(now)
        trainer.todo = tuple(n for n in dealt.todo.get(trainer.name, ()) if (step, n) not in run.poison)
        trainer.enter(Phase.COMPUTE, now)
        run.ready.add(trainer.name)
        if run.going:
            self._appoint(run)

    def advance(self) -> None:
        """Catch up with the steps that have been finished by now."""
        for run in self.runs:
            run.advance()

    def _disturb(self, trainer: Trainer) -> None:
        """Something keeps it from going on in the epoch that it is in."""
        run = self.run_of(trainer)
        if run is not None:
            run.disturb()

    # -- moments of its own --------------------------------------------------------------

    def _appoint(self, run: Run) -> None:
        """The next step after which there is something to say."""
        run.advance()
        run.appointment += 1
        number, first = run.appointment, run.applied + 1
        if run.over(run.applied):
            self._time.after(self.workload.reduce_seconds, lambda: self._close(run, number))
            return
        due = [run.last_step]
        if not run.resumed or any(t.retiring for t in run.members):
            due.append(first)
        if self.checkpoint_every:
            due.append(first + (-(first + 1)) % self.checkpoint_every)
        when = run.ends_at() + (max(first, min(due)) - first) * run.pace
        self._time.at(when, lambda: self._keep_appointment(run, number))

    def _keep_appointment(self, run: Run, number: int) -> None:
        if run not in self.runs or run.appointment != number or not run.going:
            return
        run.advance()
        applied = run.applied
        self._resume(run, applied)
        if self.checkpoint_every and (applied + 1) % self.checkpoint_every == 0:
            self._store(run, applied)
        leaving = [t for t in run.members if t.retiring]
        if leaving and not run.over(applied):
            run.broken = True
            for trainer in leaving:
                trainer.open((), self._time.now)
                trainer.enter(Phase.WAITING, self._time.now)
                self.say(trainer, Leaving(applied))
            return
        self._appoint(run)

    def _resume(self, run: Run, applied: int) -> None:
        if not run.resumed:
            run.resumed = True
            for trainer in run.members:
                self.say(trainer, Resumed(run.epoch, applied))

    def _store(self, run: Run, step: int) -> None:
        writer, epoch = run.members[0], run.epoch

        def stored() -> None:
            if writer.alive and not writer.stopped:
                self.say(writer, CheckpointWritten(step, Lineage(0, epoch), "simulated"))

        self._time.after(self.workload.store_seconds, stored)

    def _close(self, run: Run, number: int) -> None:
        """The closing collective: nobody needs anybody any more."""
        if run not in self.runs or run.appointment != number or not run.going:
            return
        applied = run.applied
        self._resume(run, applied)
        if applied < self.workload.steps - 1:
            self._stand(run, applied)
            return
        for trainer in run.members:
            trainer.enter(Phase.ENDED, self._time.now)
            self.say(trainer, LoopEnded(applied))
            self._leave_loop(trainer)

    def _stand(self, run: Run, applied: int) -> None:
        """All have applied the same step: it is stored, and they wait for what comes."""
        self._store(run, applied)
        for trainer in run.members:
            trainer.enter(Phase.WAITING, self._time.now)

    def completed(self, trainer: Trainer, word: CheckpointComplete) -> None:
        """What it has written is the newest in storage: if all stand still for that, it says so."""
        run = self.run_of(trainer)
        if run is None or run.stands_after is None or trainer is not run.members[0] or not trainer.acts:
            return
        if trainer.heard == run.epoch and word.step == trainer.applied == run.last_step:
            self.say(trainer, Suspended(run.epoch, word.step))

    def _leave_loop(self, trainer: Trainer, code: int = 0) -> None:
        """Its process ends by itself, soon."""
        trainer.over = True
        trainer.enter(Phase.ENDED, self._time.now)

        def exits() -> None:
            if trainer.alive and not trainer.hung:
                if trainer.stopped:
                    self._time.after(AGAIN_SECONDS, exits)
                else:
                    trainer.machine.exits(trainer, code)

        self._time.after(self.workload.exit_seconds, exits)
