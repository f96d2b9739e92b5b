"""Defects of a published checkpoint engine that are not to be repeated, and the tests that would find each here.

They were found by reading SenseCore's transom-checkpoint-engine.  A test that is renamed or removed is missed here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

DEFECTS: dict[str, tuple[str, ...]] = {
    "with an odd number of chunks the last one is copied by nobody": (
        "worker/test_porter.py::test_every_byte_whatever_the_number_of_chunks",
        "unit/test_ferry.py::test_every_byte_there_and_back_whatever_the_number_of_chunks",
    ),
    "a write to disk that has failed is not tried again": (
        "worker/test_porter.py::test_storage_that_fails_is_tried_again_until_it_does_not",
        "worker/test_porter.py::test_a_full_disk_is_tried_again",
        "worker/test_bad_checkpoints.py::test_storage_that_fails_for_a_while_is_tried_again",
        "e2e/test_handed_parts.py::test_storage_is_down_while_worker_and_agent_die",
    ),
    "what can't be written holds up eviction for ever": (
        "unit/test_core_handed.py::test_a_drain_does_not_wait_for_ever_and_says_what_it_does_not_wait_for",
        "unit/test_core_handed.py::test_the_end_of_a_job_does_not_wait_for_ever",
        "worker/test_porter.py::test_a_newer_checkpoint_ends_it",
        "worker/test_porter.py::test_without_room_it_stores_from_its_own_memory_and_says_so_once",
    ),
    "no fsync": ("worker/test_porter.py::test_all_is_on_disk_before_that_is_told",),
    "no checksum": (
        "worker/test_porter.py::test_a_part_that_is_damaged_in_memory_is_never_stored",
        "worker/test_snapshots.py::test_one_flipped_bit_of_its_body_is_found",
        "worker/test_storage.py::test_a_torn_or_rotten_file_is_found",
    ),
    "no rename: a crash leaves a short file that looks whole": (
        "worker/test_storage.py::test_a_manifest_appears_in_one_piece",
        "worker/test_porter.py::test_another_one_begins_again_where_one_has_died",
        "worker/test_snapshots.py::test_one_whose_writer_has_died_in_it_is_none",
    ),
    "a peer that can't answer says nothing": (
        "unit/test_ferry.py::test_what_is_not_there_is_denied",
        "unit/test_ferry.py::test_no_room_is_an_answer_with_the_fix",
    ),
    "how reading from files as a last resort ends is ignored": (
        "worker/test_bad_checkpoints.py::test_storage_that_stays_unreadable_ends_the_job_and_does_not_begin_anew",
        "worker/test_snapshots.py::test_a_stored_one_that_cant_be_read_is_no_reason_to_go_back_further_than_memory",
    ),
    "each file counts for itself: no step is known to be complete on all ranks": (
        "unit/test_core_parts.py::test_parts_of_different_steps_make_no_checkpoint",
        "unit/test_core_handed.py::test_what_is_only_in_memory_is_no_checkpoint",
        "worker/test_parts.py::test_parts_without_the_word_are_no_checkpoint",
        "worker/test_snapshots.py::test_a_step_of_which_a_part_is_with_nobody_is_no_choice",
    ),
    "documents and code disagree about names and defaults": (
        "unit/test_settings.py::test_the_readme_names_settings_that_there_are",
        "unit/test_cli_json.py::test_every_key_is_documented_and_every_documented_key_is_there",
    ),
    "a thread that watches memory spins": ("worker/test_porter.py::test_whoever_waits_for_a_commit_does_not_spin",),
    "two neighbours lost, and what was not in storage is lost with them, unnoticed": (
        "e2e/test_lost_nodes.py::test_both_copies_are_lost",
        "unit/test_core_backups.py::test_where_no_other_node_can_keep_one_that_is_said_and_a_newcomer_is_used",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_there_are_tests_that_would_find_it(defect: str) -> None:
    for test in DEFECTS[defect]:
        file, _, name = test.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
