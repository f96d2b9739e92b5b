"""The nodes and jobs of a scenario under the real coordinator's core: only what changes is an event.

    fleet = Fleet(scenario, faults, costs, History(...), Settings())
    fleet.live()

Agents are what the core sees of them: a node attaches, is silent, is back; a process is ready, dies, resumes.  How
long each takes is `Costs`; who is told to do what, and when, is the core's.  Only the groups across replicas are
connected anew, one for each position, all at once: each has as many ranks as there are replicas.

Before the scenario begins there is an hour in which the jobs are started: all policies begin with jobs that run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unicorn_mgr.coordinator.liveness import halt_limit
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    CheckpointWritten,
    Exited,
    GiveUp,
    Granted,
    Leaving,
    Ready,
    Resumed,
    Retire,
    Sample,
    StartWorker,
    StopWorker,
    Suspended,
    Symptom,
    ToAgent,
    WorkerDirective,
)
from unicorn_mgr.model import JobSpec, Lineage, Slot, WorkerName
from unicorn_mgr.phases import Phase
from unicorn_mgr.planner.problem import Policy
from unicorn_mgr.simulator.brain import Brain
from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.crew import Crew, Host, Process, Reuse
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario, Work
from unicorn_mgr.simulator.timeline import Timeline

START_SECONDS = 3_600.0
"""Before the scenario begins."""

EXIT_SECONDS = 0.1
"""From the word to end until a process has ended."""
READING_SECONDS = 0.02
EVIDENCE_SECONDS = 0.3

FINGERPRINT = {"script": "simulated"}


class Fleet:
    """A cluster that lives through a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        faults: Sequence[Fault],
        costs: Costs,
        history: History,
        settings: Settings,
        policy: Policy | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        self.scenario = scenario
        self.costs = costs
        self.history = history
        self.time = Timeline()
        self.brain = Brain(settings, self.time, self._perform, self._decided, policy)
        self.hosts = [Host(number) for number in range(scenario.nodes)]
        self.crews = {w.name: Crew(w, reuse or Reuse(), history, START_SECONDS) for w in scenario.jobs}
        self._settings = settings
        self._faults = faults
        self._warm: set[tuple[str, int]] = set()
        self._blame = ""
        """What the newest change of the cluster was due to."""
        self._missing: dict[int, str] = {}
        """Nodes that are away, the newest last, and why: whoever has fewer slots than at first lacks theirs."""

    # -- living --------------------------------------------------------------------------

    def live(self) -> None:
        """From before the beginning to the end."""
        self.brain.start()
        for host in self.hosts:
            self._attach(host)
        for work in self.scenario.jobs:
            self.brain.tell(e.JobSubmitted(f"submit {work.name}", work.name, spec_of(work, self.scenario)))
        self.time.run(START_SECONDS)
        for crew in self.crews.values():
            crew.advance(self.time.now)
            self.history.full[crew.name] = crew.rate
            crew.done %= crew.work.step_flops
            crew.stored = crew.unsaved_seconds = 0.0
            crew.becomes(self.time.now, crew.doing, rate=crew.rate)
        self.history.moves = 0
        for fault in self._faults:
            self.time.at(START_SECONDS + fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self.time.run(START_SECONDS + self.scenario.seconds)
        for crew in self.crews.values():
            crew.advance(self.time.now)

    def _attach(self, host: Host) -> None:
        slots = tuple(Slot(i) for i in range(self.scenario.slots))
        incarnation = f"{host.name} {host.lives}"
        self.brain.tell(e.NodeAttached(host.name, incarnation, slots, "10.0.0.1", (), domain=self._domain(host)))

    def _domain(self, host: Host) -> str:
        """Its rack; where a replica is larger than that, the network that all of them are in."""
        rack = self.scenario.domain_nodes
        wide = any(w.replica > max(1, rack) * self.scenario.slots for w in self.scenario.jobs)
        return "" if not rack and not wide else "network" if wide else f"rack-{host.number // rack:04d}"

    # -- faults --------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        hosts = [self.hosts[number] for number in fault.nodes if self.hosts[number].up]
        match fault.kind:
            case Kind.NODE:
                for number in fault.nodes:
                    self._repair(self.hosts[number], self.time.now + fault.repair_seconds)
                self._power_off(hosts, fault)
            case Kind.SLOW:
                for host in hosts:
                    self._slow(host, fault)
            case _:
                for process in self._hit(hosts, fault):
                    self._strike_process(process, fault)

    def _hit(self, hosts: Sequence[Host], fault: Fault) -> list[Process]:
        """The process on the slot, whoever's that is."""
        found = [p for h in hosts[:1] for p in h.processes.values() if p.alive and p.slot == fault.slot]
        return found[:1]

    def _power_off(self, hosts: Sequence[Host], fault: Fault) -> None:
        hit: dict[str, list[Process]] = {}
        now = self.time.now
        for host in hosts:
            host.up = False
            host.lives += 1
            self._missing.pop(host.number, None)
            self._missing[host.number] = fault.cause
            for process in host.processes.values():
                if process.alive:
                    hit.setdefault(process.job, []).append(process)
            host.processes.clear()
            host.slow.clear()
            self._warm -= {(name, host.number) for name in self.crews}
            silent = e.NodeSilent(host.name, self._settings.lease_seconds)
            lives = host.lives
            self.time.after(
                self._settings.lease_seconds,
                lambda host=host, lives=lives, silent=silent: (  # type: ignore[misc]
                    self.brain.tell(silent) if not host.up and host.lives == lives else None
                ),
            )
        self._blame = fault.cause if hosts else self._blame
        for job, processes in sorted(hit.items()):
            crew = self.crews[job]
            waits = crew.until_step_ends()
            step_seconds = crew.step_seconds
            self._die(crew, processes, fault.cause)
            cut = {p.seat // crew.work.replica for p in processes}
            whole = any(p.seat // crew.work.replica not in cut for p in crew.living())
            limit = halt_limit(self._settings, step_seconds, inside=crew.work.replica > 1, whole=whole)
            halted = max(self._settings.lease_seconds, waits + limit)
            self.time.at(now + halted, lambda job=job, epoch=crew.epoch: self._halt(job, epoch, now))  # type: ignore[misc]
        for crew in self.crews.values():
            crew.copies_again(self.hosts, self.scenario.domain_nodes)

    def _halt(self, job: str, epoch: object, since: float) -> None:
        """Whoever is heard has waited for silent nodes for long enough."""
        crew = self.crews[job]
        gone = any((p := crew.processes.get(name)) is None or not p.alive for name in crew.members)
        if gone and crew.epoch == epoch:
            self.brain.tell(e.JobHalted(job, self.time.now - since))

    def _repair(self, host: Host, until: float) -> None:
        """It is lost, or is hit again while it is down: it is back after the later repair."""
        if host.up or until > host.back_at:
            host.back_at = until
            if until < math.inf:
                self.time.at(until, lambda: self._back(host))

    def _back(self, host: Host) -> None:
        """It has been repaired."""
        if self.time.now < host.back_at:
            return
        host.up = True
        self._blame = self._missing.pop(host.number)
        self._attach(host)

    def _slow(self, host: Host, fault: Fault) -> None:
        mark, lives = (fault.slowness, fault.cause), host.lives
        host.slow.append(mark)
        self._blame = fault.cause
        self._pace_of(host)

        def mended() -> None:
            if host.lives == lives:
                host.slow.remove(mark)
                self._pace_of(host)

        if fault.repair_seconds < math.inf:
            self.time.after(fault.repair_seconds, mended)

    def _pace_of(self, host: Host) -> None:
        """Whoever trains on it goes at its speed from now on."""
        for name in sorted({p.job for p in host.processes.values() if p.alive}):
            if self.crews[name].doing is Doing.TRAINING:
                self._goes_on(self.crews[name])

    def _strike_process(self, process: Process, fault: Fault) -> None:
        crew, seen = self.crews[process.job], self.costs.exit_seen_seconds
        self._blame = fault.cause
        if fault.kind is Kind.PROCESS:
            self._die(crew, [process], fault.cause)
            self.hosts[process.node].processes.pop(process.name, None)
            gone = (e.WorkerDying(process.name, "mutex"), e.WorkerExited(Exited(process.name, -9)))
            self.time.after(seen, lambda: self.brain.tell(*gone))
        elif process.name not in crew.members or crew.doing is not Doing.TRAINING:
            return  # nobody is connected to it, and nobody waits for it
        elif fault.kind is Kind.LINK:
            crew.becomes(self.time.now, Doing.DETECTION, fault.cause)
            symptom = e.WorkerTold(process.name, Symptom(crew.epoch, fault.cause))
            self.time.after(seen, lambda: self.brain.tell(symptom))
        else:
            process.hung = True
            limit = max(self._settings.stall_seconds, self._settings.stall_factor * crew.step_seconds)
            crew.becomes(self.time.now, Doing.DETECTION, fault.cause)
            sample = self._sample(crew, process, limit)
            self.time.after(limit, lambda: self.brain.tell(e.WorkerQuiet(sample, limit)))

    def _die(self, crew: Crew, processes: Sequence[Process], cause: str) -> None:
        """They are gone, and who waits for them does not know yet."""
        members = set(crew.members)
        mine = [p for p in processes if p.name in members]
        before = {p.seat // crew.work.replica for p in crew.living()}
        for process in processes:
            process.alive = False
        if not mine:
            return
        whole = {p.seat // crew.work.replica for p in mine} & before
        if crew.doing is Doing.TRAINING:
            crew.becomes(self.time.now, Doing.DETECTION, cause)
        crew.cause = cause
        crew.loses(self.time.now, len(whole))

    # -- what the core wants ---------------------------------------------------------------

    def _decided(self, entry: e.Event) -> None:
        if isinstance(entry, e.SlotsAssigned):
            crew = self.crews[entry.job]
            places = set(entry.seats.values())
            self.history.moves += len(places - crew.places)
            crew.slots, crew.places = len(places), places
            if not entry.seats and crew.doing is not Doing.WAITING:
                crew.cause = self._blame
            self._begins(crew)
        elif isinstance(entry, e.LifeEnded):
            self.crews[entry.job].members = ()
            self._begins(self.crews[entry.job])

    def _begins(self, crew: Crew) -> None:
        """If none of its members is left, it does so as soon as it has slots."""
        if not crew.members:
            crew.becomes(self.time.now, Doing.TRANSITION if crew.slots else Doing.WAITING, crew.cause or self._blame)

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.SendToAgent(node, body):
                self._hear(self.hosts[int(node.rpartition("-")[2])], body)
            case e.OpenRendezvous(job, epoch, members):
                crew = self.crews[job]
                crew.epoch, crew.suspends = epoch, False
                self._regroup(crew, members)
            case e.TakeReadings():
                self.time.after(READING_SECONDS, lambda: self._read(action, 1))
            case e.TakeEvidence(_, worker):
                fact = e.EvidenceTaken(worker, "simulated", "none")
                self.time.after(EVIDENCE_SECONDS, lambda: self.brain.tell(fact))

    def _hear(self, host: Host, body: ToAgent) -> None:
        match body:
            case StartWorker():
                self._start(host, body)
            case StopWorker(worker):
                self._end(worker, -15)
            case WorkerDirective(worker, Granted() as word):
                self._granted(worker, word)
            case WorkerDirective(worker, Retire()):
                self._retire(worker)
            case WorkerDirective(worker, GiveUp()):
                self._end(worker, 1)
            # Nothing else takes time, or changes what a job does.

    def _process(self, worker: str) -> Process | None:
        return self.crews[WorkerName.parse(worker).job].processes.get(worker)

    def _start(self, host: Host, order: StartWorker) -> None:
        if not host.up:
            return
        name = WorkerName.parse(order.worker)
        process = Process(order.worker, order.job, host.number, order.slot, name.seat)
        crew = self.crews[order.job]
        crew.processes[process.name] = host.processes[process.name] = process
        warm = (order.job, host.number) in self._warm
        self._warm.add((order.job, host.number))
        seconds = self.costs.process_start_seconds + (0.0 if warm else self.costs.cold_start_seconds)
        if crew.work.replica > 1:  # the groups inside a replica are its own, and connected before it joins
            gpus = crew.work.replica * self.scenario.gpus_per_slot
            seconds += self.costs.communicator_seconds_per_thousand * gpus / 1_000

        def comes_up() -> None:
            if process.alive:
                process.ready = True
                told = (e.WorkerStarted(process.name, 1), e.WorkerAttached(process.name))
                self.brain.tell(*told, e.WorkerTold(process.name, Ready(FINGERPRINT, rehearsed=True)))

        self.time.after(seconds, comes_up)

    def _end(self, worker: str, code: int) -> None:
        process = self._process(worker)
        if process is None or not process.alive:
            return

        def ends() -> None:
            if process.alive:
                process.alive = False
                self.hosts[process.node].processes.pop(worker, None)
                self.crews[process.job].processes.pop(worker, None)
                self.brain.tell(e.WorkerExited(Exited(worker, code)))

        self.time.after(EXIT_SECONDS, ends)

    def _granted(self, worker: str, word: Granted) -> None:
        process = self._process(worker)
        if process is None or not process.alive:
            return
        self.crews[process.job].suspends = word.suspends
        if process.leaving and worker not in word.members:
            self._end(worker, 0)

    def _retire(self, worker: str) -> None:
        process = self._process(worker)
        if process is None or not process.alive or process.retiring:
            return
        process.retiring = True
        self._leave(process)

    def _leave(self, process: Process) -> None:
        """After the open step; if there is none at present, after the next one."""
        crew = self.crews[process.job]
        if crew.doing is not Doing.TRAINING:
            return  # `_trains` looks for it

        def leaves() -> None:
            if process.alive and not process.leaving and crew.doing is Doing.TRAINING and not process.hung:
                process.leaving = True
                self.brain.tell(e.WorkerTold(process.name, Leaving(crew.step)))

        self.time.after(crew.until_step_ends(), leaves)

    # -- a new membership ------------------------------------------------------------------

    def _regroup(self, crew: Crew, members: tuple[str, ...]) -> None:
        now, costs, epoch = self.time.now, self.costs, crew.epoch
        hit = crew.doing is Doing.DETECTION
        cause = crew.cause if hit else crew.cause or self._blame
        crew.becomes(now, Doing.TRANSITION, cause)
        crew.members = members
        living = crew.living()
        for process in living:
            process.leaving = False
        forming = costs.regroup_seconds + costs.regroup_seconds_per_doubling * math.log2(max(1, len(members)))
        seconds = costs.communicator_seconds_per_thousand * len(members) / crew.work.replica / 1_000
        seconds += self._state_seconds(crew, living, hit=hit)

        def formed() -> None:
            if crew.epoch == epoch and len(crew.living()) == len(members):
                self.brain.tell(e.GroupFormed(crew.name, epoch))
                self.time.after(seconds, lambda: self._trains(crew, epoch))

        self.time.after(forming, formed)

    def _state_seconds(self, crew: Crew, members: Sequence[Process], *, hit: bool) -> float:
        """Until everybody has the state; it is settled here who has it, and what is lost if nobody has."""
        shard = crew.work.state_bytes / crew.work.replica / self.scenario.gpus_per_slot
        had = [p for p in members if p.has_state]
        if had and crew.reuse.live:
            return shard / self.costs.state_bytes_per_second if len(had) < len(members) else 0.0
        from_memory = crew.reuse.snapshots and crew.done > 0 and crew.is_in_memory(self.hosts)
        if crew.done and (hit or not had):
            crew.begins_anew(self.time.now, from_memory=from_memory)
        rate = self.costs.state_bytes_per_second if from_memory else self.costs.storage_bytes_per_second
        return shard / rate

    def _goes_on(self, crew: Crew) -> None:
        """It trains, as fast as its slowest node."""
        slowest, by = max((max(self.hosts[p.node].slow, default=(1.0, "")) for p in crew.living()), default=(1.0, ""))
        rate = crew.work.rate(len(crew.members)) / slowest
        lacking = by or next(reversed(self._missing.values()), crew.cause or self._blame)
        full = self.history.full.get(crew.name, rate)
        crew.becomes(self.time.now, Doing.TRAINING, "" if rate == full else lacking, rate)

    def _trains(self, crew: Crew, epoch: object) -> None:
        """All have the state and compute; each tells so at the end of a step."""
        if crew.epoch != epoch or len(crew.living()) < len(crew.members):
            return
        for process in crew.living():
            process.has_state, process.hung = True, False
        if crew.suspends:
            self._stand(crew)
            return
        crew.remembers(self.hosts, self.scenario.domain_nodes)
        self._goes_on(crew)
        self.time.after(crew.until_step_ends(), lambda: self._resumed(crew, epoch))

    def _resumed(self, crew: Crew, epoch: object) -> None:
        if crew.epoch != epoch or len(crew.living()) < len(crew.members):
            return
        crew.advance(self.time.now)
        step = crew.step
        self.brain.tell(*(e.WorkerTold(p.name, Resumed(crew.epoch, step)) for p in crew.living()))
        self.brain.tell(e.JobProgressed(crew.name, step, crew.step_seconds))
        for process in crew.living():
            if process.retiring and not process.leaving:
                self._leave(process)

    def _stand(self, crew: Crew) -> None:
        """All stand still after the same step, which is stored."""
        epoch = crew.epoch
        seconds = crew.work.state_bytes / crew.work.replica / self.costs.storage_bytes_per_second
        crew.becomes(self.time.now, Doing.TRANSITION)
        step = crew.step
        living = crew.living()
        self.brain.tell(*(e.WorkerTold(p.name, Resumed(epoch, step)) for p in living))
        self.brain.tell(*(e.WorkerTold(p.name, Suspended(epoch, step)) for p in living))

        def stored() -> None:
            if crew.epoch == epoch and len(crew.living()) == len(crew.members):
                crew.stores(self.time.now)
                writers = crew.living()[: crew.work.replica]
                note = CheckpointWritten(step, Lineage(0, epoch), "simulated")
                self.brain.tell(*(e.WorkerTold(p.name, note) for p in writers))
                crew.becomes(self.time.now, Doing.WAITING)

        self.time.after(seconds, stored)

    # -- who is waited for -----------------------------------------------------------------

    def _read(self, asked: e.TakeReadings, which: int) -> None:
        """The rings of all that were asked for, if all nodes answer."""
        crew = self.crews[asked.job]
        names = [name for _, mine in sorted(asked.workers.items()) for name in mine]
        found = [crew.processes.get(name) for name in names]
        if all(p is not None and self.hosts[p.node].up for p in found):
            samples = tuple(self._sample(crew, p) for p in found if p is not None)
            self.brain.tell(e.ReadingTaken(asked.job, asked.number, samples))
        if which == 1:
            self.time.after(self._settings.second_reading_seconds, lambda: self._read(asked, 2))

    def _sample(self, crew: Crew, process: Process, quiet: float = 0.0) -> Sample:
        """Whoever hangs stands in its forward, and the others wait for its part of the gradient."""
        stuck = any(p.hung for p in crew.living())
        phase = Phase.COMPUTE if process.hung or not stuck else Phase.REDUCE
        counter = 1 if stuck else int(self.time.now * 1_000)
        seconds = crew.work.step_flops / max(1.0, crew.work.rate(len(crew.members)))
        limit = max(self._settings.stall_seconds, self._settings.stall_factor * seconds)
        number = crew.epoch.number
        return Sample(
            process.name, counter, number, crew.step + 1, crew.step, -1, int(phase), 0, quiet or limit, seconds
        )


def spec_of(work: Work, scenario: Scenario) -> JobSpec:
    """A job as it is submitted."""
    wide = work.replica > scenario.slots
    stairs = {size: rate for size, rate in work.throughput if work.size_min <= size <= work.size_max}
    return JobSpec(
        name=work.name,
        command=("python", "train.py"),
        size_min=work.size_min,
        size_max=work.size_max,
        weight=work.weight,
        checkpoint_url="simulated",
        restarts_max=10**9,
        replica_size=work.replica if work.replica > 1 else 0,
        replica={"shard": work.replica} if work.replica > 1 else {},
        replica_within="domain" if wide else "node",
        sizes=tuple(stairs),
        throughput=stairs,
    )
