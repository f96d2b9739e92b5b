"""A running job gives all its slots to a more important one, waits, and comes back, with real workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from e2e.harness import Cluster, Job, Undisturbed, check_counted_once, check_exact

STEPS = 40
MICRO_BATCHES = 8  # so many that the fourth slot is worth having
ARGUMENTS = ("--steps", str(STEPS), "--micro-batches", str(MICRO_BATCHES))


def submit_low(shared: Cluster, store: Path, drills: tuple[str, ...] = ()) -> Job:
    """It takes its time, and stores nothing by itself before its end."""
    return shared.submit([*ARGUMENTS, "--pace", "0.2"], size=4, size_min=3, checkpoint_url=str(store), drills=drills)


def wait_until_it_waits(shared: Cluster, low: Job) -> None:
    def waits(_: object) -> bool:
        view = shared.job(low.name)
        return view.state == "waiting" and not view.workers

    shared.wait_for(f"{low.name} waits", waits)


def comes_back(shared: Cluster, low: Job, undisturbed: Undisturbed) -> None:
    """It ends as if nothing had been."""
    (low.out / "hurry").touch()
    ended = low.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{shared.logs()}"
    check_exact(low, undisturbed(*ARGUMENTS), members=4)
    check_counted_once(low, STEPS, MICRO_BATCHES)


def test_a_job_waits_while_a_more_important_one_trains(
    shared: Cluster, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    low = submit_low(shared, tmp_path / "store")
    high = gives_way(shared, low)
    suspended = shared.wait_event("JobSuspended", lambda e: e.job == low.name)
    wait_until_it_waits(shared, low)
    high.wait_step(2)
    view = shared.job(low.name)
    assert view.reason.startswith("waits for ")
    assert view.reason.endswith(f"its state after step {suspended.step} is stored")
    assert (view.size, view.checkpoint_step) == (0, suspended.step)
    members = [w.node for w in shared.job(high.name).workers]
    assert len(members) == len(set(members)) >= 2

    (high.out / "hurry").touch()
    assert high.wait().exit_code == 0, shared.logs()
    comes_back(shared, low, undisturbed)
    check_nothing_computed_twice(low)
    assert max(step for _, step, _, _ in low.records()) == STEPS - 1
    assert shared.incidents(low.name) == []
    assert shared.incidents(high.name) == []


def gives_way(shared: Cluster, low: Job) -> Job:
    """Somebody more important has come, and trains until he is told to hurry."""
    low.wait_step(4)
    return shared.submit(["--steps", "60", "--pace", "0.3"], size=4, size_min=2, priority=1)


def check_nothing_computed_twice(low: Job) -> None:
    """A planned standstill loses no micro-batch, not even of the open step."""
    computed = Counter((step, number) for _, step, number, rehearsal in low.records() if not rehearsal)
    assert set(computed.values()) == {1}


def test_whoever_stores_is_killed_and_another_stores(shared: Cluster, undisturbed: Undisturbed, tmp_path: Path) -> None:
    low = submit_low(shared, tmp_path / "store", drills=("0.0:kill:0:snapshot",))
    high = gives_way(shared, low)
    wait_until_it_waits(shared, low)
    (high.out / "hurry").touch()
    comes_back(shared, low, undisturbed)
    check_nothing_computed_twice(low)
    (incident,) = shared.incidents(low.name)
    assert (incident.cause, incident.state, incident.steps_lost) == ("process_killed", "closed", 0)


def test_the_coordinator_is_killed_while_the_state_is_stored(
    shared: Cluster, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    low = submit_low(shared, tmp_path / "store", drills=("0.0:gate:0:publish_checkpoint",))
    high = gives_way(shared, low)
    low.at_gate("publish_checkpoint")
    shared.kill_coordinator()
    low.open_gate("publish_checkpoint")
    shared.wait_event("JobSuspended", lambda e: e.job == low.name)
    wait_until_it_waits(shared, low)
    (high.out / "hurry").touch()
    comes_back(shared, low, undisturbed)
    check_nothing_computed_twice(low)
    assert shared.incidents(low.name) == []


def test_storage_that_fails_keeps_it_running(shared: Cluster, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """It goes on where it stood, and gives way once storage is mended."""
    store = tmp_path / "store"
    store.write_text("in the way")
    low = submit_low(shared, store)
    high = gives_way(shared, low)
    withdrawn = shared.wait_event("SuspensionWithdrawn", lambda e: e.job == low.name)
    assert withdrawn.reason.startswith("it can't wait, as its state can't be stored: ")
    low.wait_step(max(step for _, step, _, _ in low.records()) + 2)
    assert not any(h.kind == "WorkerCondemned" and h.event.worker.startswith(low.name) for h in shared.events())
    store.unlink()
    shared.wait_event("JobSuspended", lambda e: e.job == low.name)
    (high.out / "hurry").touch()
    comes_back(shared, low, undisturbed)
    check_nothing_computed_twice(low)
    assert shared.incidents(low.name) == []
