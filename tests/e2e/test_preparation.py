"""A slot changes hands between two running jobs: who follows is ready before who leaves lets go."""

from __future__ import annotations

from e2e.harness import Cluster, Undisturbed, check_connections, check_counted_once, check_exact

from unicorn_mgr import messages

STEPS = 120


def test_who_follows_is_ready_before_who_leaves_lets_go(shared: Cluster, undisturbed: Undisturbed) -> None:
    arguments = ["--steps", str(STEPS), "--pace", "0.1"]
    giver = shared.submit(arguments, size=3, size_min=1, weight=2.0)
    taker = shared.submit(arguments, size=2, size_min=1, weight=1.0)
    shared.wait_for("both train", lambda _: [shared.job(j.name).size for j in (giver, taker)] == [3, 1])
    giver.wait_step(2)
    taker.wait_step(2)

    shared.command(messages.SetWishes(taker.name, {"weight": "9"}))
    moved = shared.wait_event("EpochGranted", lambda e: e.job == taker.name and len(e.members) == 2)
    follower = moved.members[-1]
    leaver = shared.wait_event("RetirementOrdered", lambda e: e.worker.startswith(giver.name)).worker
    story = shared.events()

    def first(kind: str, worker: str) -> int:
        """The number of the first event of a kind about a worker."""
        found = [h.number for h in story if h.kind == kind and worker in repr(h.event)]
        assert found, f"{kind} of {worker} never happened\n{shared.story()}"
        return found[0]

    ready = first("WorkerTold/Ready", follower)
    retired = first("RetirementOrdered", leaver)
    left = first("WorkerExited", leaver)
    joined = next(h.number for h in story if h.event is moved)
    assert ready < retired < left < joined, shared.story()

    for job, members in ((giver, 2), (taker, 2)):
        job.hurry_when_whole(members)
    for job in (giver, taker):
        ended = job.wait()
        assert ended.exit_code == 0, f"{ended.reason}\n{shared.logs()}"
        check_exact(job, undisturbed("--steps", str(STEPS)))
        check_counted_once(job, STEPS)
        check_connections(job)
        assert shared.incidents(job.name) == []
