"""Runs the checks of ``world.py`` in real worlds, each world once a session."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import light_torch
from tests.support.processes import run_process

ROOT = Path(__file__).parents[3]
PYTHONPATH = os.pathsep.join([light_torch.FOLDER, str(ROOT)])
LIMIT_S = 300
HOROVODRUN = Path(sys.executable).with_name("horovodrun")

Saw = list[dict[str, Any]]
"""What each rank saw in one check, by rank."""


class World(NamedTuple):
    """``flavour`` is "ours" or "stock"."""

    flavour: str
    ranks: int
    checks: tuple[str, ...]


def saw(world: World) -> dict[str, Saw]:
    """What the ranks of a world saw, by check."""
    found = _tried(world)
    if isinstance(found, AssertionError):
        raise found
    return found


@functools.cache
def _tried(world: World) -> dict[str, Saw] | AssertionError:
    """The same, or what went wrong: the world is not made again for each of its tests."""
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        try:
            return _run(world, Path(name))
        except AssertionError as error:
            return error


def _run(world: World, directory: Path) -> dict[str, Saw]:
    command = [HOROVODRUN, "-np", str(world.ranks), "-H", f"localhost:{world.ranks}", "--gloo"]
    command += [sys.executable, "-m", "tests.contract.worker.world", world.flavour, directory, *world.checks]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    with run_process(command, cwd=ROOT, env=env, orderly=True) as process:
        process.wait(LIMIT_S)
    seen = {}
    for name in world.checks:
        files = [directory / f"{name}.{rank}.json" for rank in range(world.ranks)]
        missing = [file.name for file in files if not file.exists()]
        assert not missing, f"{missing} were not written\n{process.output}"
        seen[name] = [json.loads(file.read_text()) for file in files]
    return seen


USERS = ("own", "sloppy", "in_place", "hasty", "keeps_a_model")
HOROVODS = ("object_state", "torch_state")
KINDS = (*USERS, *HOROVODS)
"""The users' States of ``users.py``."""

BOTH = (
    "notice_before_there_is_a_state_counts",  # the first check of its process
    "newcomer_falls_back_to_what_was_synced",
    "sync_sends_weights_with_their_own_counters",
    "newcomer_gets_the_weights_adamw",
    "newcomer_gets_schedulers",
    "newest_commit_wins_though_it_is_not_rank_0s",
    "the_interrupt_seals",
    "what_a_reset_callback_changes_reaches_newcomers",
    "dropout_differs_after_a_join",
    "a_commit_sends_nothing",
    "notice_during_the_new_worlds_forming_is_kept",
    "notices_of_one_second_are_two_notices",
    "notice_to_one_rank_ends_the_world_at_one_step",
    "no_interrupt_between_backward_passes",
    *(f"newest_{kind}" for kind in KINDS),
    *(f"falls_back_{kind}" for kind in KINDS),
    "what_a_users_sync_forgets_is_synced",
    # From here on the stock State leaves its world in a worse shape each time.
    "interrupted_accumulation_is_forgotten_everywhere",
    "newcomer_gets_lbfgs",
    "any_kind_of_tensor_is_synced",  # the stock State leaves broadcasts under way, whose names the next check may use
    "unused_parameters_do_not_stall",  # the stock State never returns from it
)

ONLY_OURS = (
    "first_sync_sends_though_all_hold_commit_0",
    "equal_commits_are_not_sent",
    "weights_loaded_on_one_rank_reach_the_others",
    "weights_loaded_on_one_rank_and_committed_by_all",
    "an_optimizer_steps_on_after_its_state",
    "values_and_buffers_that_differ_are_made_equal",
    "rank_behind_by_one_commit_follows",
    "commits_of_one_number_after_unequal_steps",
    "divergence_is_found_when_asked_for",
    "notice_at_any_moment_ends_the_world_at_one_step",
    "a_notice_that_comes_twice_is_one",
    "newcomer_gets_a_group_that_was_added",
    "newcomer_loses_a_group_that_was_removed",
    "a_users_sync_merges_what_each_rank_has",
    "samples_of_our_state",
    "samples_of_a_mixin_over_torch_state",
    "samples_of_a_mixin_over_a_users_state",
    "passes_without_set_epoch",
    "global_batches_train_as_one_process",
    "ranks_share_the_counting_of_shards",
    "fingerprints_agree_after_sync",
    "steps_of_the_root_count_for_the_newcomer",
    "dataclasses_of_the_script_come_in",
    "a_class_that_only_the_root_has_is_refused",
    "different_models_are_named",
    # These go through a new world each.
    "what_is_under_way_is_dropped_with_its_world",
    "who_is_ahead_waits_for_those_behind",
    "who_is_done_first_may_leave_at_once",
    "own_goes_on_under_the_ours_loop",
    "own_goes_on_under_the_stock_loop",
    "torch_state_goes_on_under_the_ours_loop",
    "torch_state_goes_on_under_the_stock_loop",
)

OF_THREE = (
    "first_sync_sends_though_all_hold_commit_0",
    "newest_commit_wins_though_it_is_not_rank_0s",
    "values_and_buffers_that_differ_are_made_equal",
    "divergence_is_found_when_asked_for",
    "notice_to_one_rank_ends_the_world_at_one_step",
    "notice_at_any_moment_ends_the_world_at_one_step",
    "no_interrupt_between_backward_passes",
    "dropout_differs_after_a_join",
    "unused_parameters_do_not_stall",
    "a_users_sync_merges_what_each_rank_has",
)

OURS = World("ours", 2, BOTH + ONLY_OURS)
STOCK = World("stock", 2, BOTH)
THREE = World("ours", 3, OF_THREE)
