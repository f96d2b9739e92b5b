"""Programs that fail by themselves: healed when it is one worker, told when it is the program."""

from __future__ import annotations

import sys

from command_line import ran
from e2e.harness import SCRIPT, Cluster, Job, Undisturbed, check_exact, finish

STEPS = 40
ARGUMENTS = ["--steps", str(STEPS), "--pace", "0.05"]


def test_an_exception_restarts_that_worker(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit(ARGUMENTS, drills=("1.0:exception:4:compute",))
    finish(job, undisturbed, STEPS, members=3)
    (incident,) = shared.incidents(job.name)
    assert incident.cause == "exception"
    assert incident.detected_by == "exception propagation"
    assert "DrillError: drill: an exception at compute in step 4" in incident.evidence


def test_the_same_exception_everywhere_ends_the_job(shared: Cluster) -> None:
    job = shared.submit([*ARGUMENTS, "--raise-at", "4:*"])
    ended = job.wait()
    assert ended.exit_code == 1
    assert "ValueError: planted: micro-batch" in ended.reason
    # Who is slow may first be dealt what another one has died on: two deaths on it say the same.
    assert "every worker raised the same" in ended.reason or "of step 4 was open on" in ended.reason
    assert shared.job(job.name).restarts <= 3


def test_a_poison_micro_batch_is_not_dealt_a_third_time(shared: Cluster) -> None:
    job = shared.submit([*ARGUMENTS, "--raise-at", "4:2"])
    ended = job.wait()
    assert ended.exit_code == 1
    assert "micro-batch 2 of step 4 was open on" in ended.reason
    assert "ValueError: planted: micro-batch 2 of step 4" in ended.reason
    assert sum(1 for _, step, number, _ in job.records() if (step, number) == (4, 2)) == 2


def test_a_poison_micro_batch_is_skipped_if_the_job_says_so(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit([*ARGUMENTS, "--raise-at", "4:2"], skip_poison=True)
    check_skipped(job, undisturbed)


def test_a_micro_batch_that_kills_the_only_worker_is_skipped_if_its_user_says_so(
    shared: Cluster, undisturbed: Undisturbed
) -> None:
    """Nobody is left to say what was open, and every life begins anew."""
    job = Job(shared, "poisoned", shared.folder / "out" / "poisoned")
    script = (sys.executable, str(SCRIPT), "--out", str(job.out), "--steps", str(STEPS), "--kill-at", "4:2")
    words = ("run", "--name", job.name, "--skip-poison", "--snapshot-budget", "0", "--no-snapshot", "--", *script)
    said = ran(*words, coordinator=shared.local.address)
    assert said.code == 0, said
    assert f"{job.name} goes on without micro-batch 2 of step 4: workers have died on it" in said.err
    check_skipped(job, undisturbed)
    # Step 3 was not committed: no later collective had completed.
    assert [(i.cause, i.steps_lost) for i in shared.incidents(job.name)] == [("process_killed", 3)] * 2


def check_skipped(job: Job, undisturbed: Undisturbed) -> None:
    """It was computed twice, and the end is that of a run without it."""
    ended = job.wait()
    assert ended.exit_code == 0, ended.reason
    assert sum(1 for _, step, number, _ in job.records() if (step, number) == (4, 2)) == 2
    job.cluster.wait_event("PoisonFound", lambda e: e.job == job.name and e.skip)
    check_exact(job, undisturbed("--steps", str(STEPS), "--skip-at", "4:2"))


def test_exit_zero_before_the_end_is_a_fault(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit(ARGUMENTS, drills=("1.0:exit:4:computed",))
    finish(job, undisturbed, STEPS, members=3)
    (incident,) = shared.incidents(job.name)
    assert incident.cause == "left_the_loop_early"


def test_a_break_out_of_the_loop_is_a_fault(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit([*ARGUMENTS, "--leave-at", "1:4"])
    assert job.wait().exit_code == 0
    reference = undisturbed("--steps", str(STEPS))
    for worker in ("0.0", "1.1", "2.0"):
        assert f"{job.name}-{worker}" in job.weights()
    job.out.joinpath(f"weights-{job.name}-1.0.pt").unlink()
    check_exact(job, reference, members=3)
    assert "the training loop was left early" in job.log()


def test_stop_ends_all_after_the_same_step(shared: Cluster, undisturbed: Undisturbed) -> None:
    """Asked for after step 5, every worker ends after step 6, as a run of seven steps does."""
    job = shared.submit(["--steps", "30", "--stop-at", "5"])
    finish(job, undisturbed, 7, members=3)


def test_an_import_error_ends_the_job_with_its_traceback(shared: Cluster) -> None:
    job = shared.submit([], command=[sys.executable, "-c", "import no_such_module"])
    ended = job.wait()
    assert ended.exit_code == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in ended.reason


def test_a_script_that_does_not_exist_is_the_users_mistake(shared: Cluster) -> None:
    job = shared.submit([], command=[sys.executable, "nowhere.py"])
    ended = job.wait()
    assert ended.exit_code == 2
    assert ended.reason.startswith("command: nowhere.py: there is no such script")


def test_a_restart_budget_ends_a_crash_loop(shared: Cluster) -> None:
    command = [sys.executable, "-c", "import os, unicorn_mgr as u; u.attach(); os._exit(7)"]
    job = shared.submit([], command=command, size=1, restarts_max=3)
    ended = job.wait()
    assert ended.exit_code == 1
    assert "restart budget spent: 4 failures" in ended.reason
