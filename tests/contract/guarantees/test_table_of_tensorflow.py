"""The cells of TensorFlow's rows. A process trains with one framework, so each test reads what others have seen."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

from tests.contract.guarantees.judgements import Lives, goes_on
from tests.contract.worker.run_worlds import ROOT
from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow

pytestmark = [needs_tensorflow, pytest.mark.timeout(200)]

ENVIRON = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
KINDS = ("keras_loop", "keras_fit", "variables")
USERS = ("own", "sloppy")
RANKS = 2

horovods = pytest.mark.parametrize("kind", KINDS)
users = pytest.mark.parametrize("kind", USERS)
unmodified = pytest.mark.parametrize("kind", [*KINDS, *USERS])


@functools.cache
def alone() -> Any:
    """What a process has seen of each kind in a world of one, by check and kind."""
    command = [sys.executable, "-m", "tests.contract.guarantees.tensorflow_alone"]
    with run_process(command, cwd=ROOT, env=ENVIRON) as process:
        assert process.wait(150) == 0, process.output
        return json.loads(process.stdout.splitlines()[-1])


@functools.cache
def together() -> Any:
    """What two ranks have seen, by rank, check and kind. horovodrun itself would import TensorFlow, for seconds."""
    meeting = RendezvousServer()
    port = meeting.start()
    slots = get_host_assignments([HostInfo("localhost", RANKS)], RANKS)
    meeting.init(slots)
    try:
        with tempfile.TemporaryDirectory(prefix="hvd-test-") as directory, contextlib.ExitStack() as stack:
            command = [sys.executable, "-m", "tests.contract.guarantees.tensorflow_world", directory]
            place = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
            place |= {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
            ranks = [
                stack.enter_context(
                    run_process(command, cwd=ROOT, env={**ENVIRON, **place, **create_slot_env_vars(slot)})
                )
                for slot in slots
            ]
            for rank in ranks:
                assert rank.wait(150) == 0, rank.output
            return [json.loads(Path(directory, f"{rank}.json").read_text()) for rank in range(RANKS)]
    finally:
        meeting.stop()
        meeting._httpd.server_close()


@functools.cache
def lives(*wanted: str, seed: int = 0, anew: int = 0) -> dict[str, Lives]:
    command = [sys.executable, "-m", "tests.contract.guarantees.killed_processes", "tensorflow"]
    with run_process([*command, str(seed), str(anew), *wanted], cwd=ROOT, env=ENVIRON) as process:
        assert process.wait(timeout=350) == 0, process.output
        return {kind: [tuple(life) for life in seen] for kind, seen in json.loads(process.stdout).items()}


def some_lives(kind: str) -> Lives:
    wanted = [f"ours {name}=2" for name in KINDS] + [f"over_horovods {name}=2" for name in KINDS]
    wanted += [f"over_users {name}=2" for name in USERS] + ["unmodified keras_loop=2"]
    return lives(*wanted)[kind]


# Never skips the sync


@horovods
def test_a_state_of_tensorflow_never_skips_the_sync(kind: str) -> None:
    assert alone()["asks to skip"][f"ours {kind}"] is False


@horovods
def test_a_mixin_over_horovods_state_of_tensorflow_never_skips_the_sync(kind: str) -> None:
    assert alone()["asks to skip"][f"over_horovods {kind}"] is False


@users
def test_a_mixin_over_a_users_state_of_tensorflow_never_skips_the_sync(kind: str) -> None:
    assert alone()["asks to skip"][f"over_users {kind}"] is False


@unmodified
def test_an_unmodified_state_of_tensorflow_skips_the_sync_but_under_our_loop(kind: str) -> None:
    assert alone()["asks to skip"][f"unmodified {kind}"] is True
    assert alone()["synced at"][f"unmodified {kind}"] == [0, 1]


def test_every_state_of_tensorflow_under_our_loop_rolls_back_for_any_error_that_names_a_lost_collective() -> None:
    taken = alone()["takes a lost collective for a lost peer"]
    assert [kind for kind, rolled_back in taken.items() if not rolled_back] == []
    assert len(taken) == 3 + 3 + 2 + 5


# Exact roll-back


@horovods
def test_a_state_of_tensorflow_rolls_back_exactly(kind: str) -> None:
    assert alone()["rolls back exactly"][f"ours {kind}"] is True


@horovods
def test_a_mixin_over_horovods_state_of_tensorflow_rolls_back_exactly(kind: str) -> None:
    assert alone()["rolls back exactly"][f"over_horovods {kind}"] is True


@users
def test_a_mixin_over_a_users_state_of_tensorflow_rolls_back_exactly(kind: str) -> None:
    assert alone()["rolls back exactly"][f"over_users {kind}"] is True


@unmodified
def test_an_unmodified_state_of_tensorflow_does_not_roll_back_exactly(kind: str) -> None:
    assert alone()["rolls back exactly"][f"unmodified {kind}"] is False


# Survives its process


@horovods
def test_a_commit_of_a_state_of_tensorflow_survives_its_process(kind: str) -> None:
    assert goes_on(some_lives(f"ours {kind}"))


@horovods
def test_a_commit_of_a_mixin_over_horovods_state_of_tensorflow_survives_its_process(kind: str) -> None:
    assert goes_on(some_lives(f"over_horovods {kind}"))


@users
def test_a_commit_of_a_mixin_over_a_users_state_of_tensorflow_survives_its_process(kind: str) -> None:
    assert goes_on(some_lives(f"over_users {kind}"))


def test_a_commit_of_an_unmodified_state_of_tensorflow_dies_with_its_process() -> None:
    assert [found for found, _, _ in some_lives("unmodified keras_loop")] == [0, 0]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_commits_of_tensorflow_survive_kills_at_random_moments() -> None:
    """The second life is a program of its own, as a launcher starts them."""
    wanted = ("ours keras_loop=25", "over_horovods keras_loop=10", "over_users own=10")
    seen = lives(*wanted, seed=random.randrange(1 << 30), anew=1)
    assert [kind for kind, each in seen.items() if not goes_on(each)] == []


# The newest commit is the root


def all_take(root: int, kind: str, *, own_numbers: bool = True) -> bool:
    saw = [rank["newest"][kind] for rank in together()]
    assert saw[0]["before"] != saw[1]["before"]
    assert [rank["rank"] for rank in saw] == ([0, 1] if own_numbers else [0, 0])
    return [rank["after"] for rank in saw] == [saw[root]["before"]] * 2


@horovods
def test_a_state_of_tensorflow_follows_the_newest_commit(kind: str) -> None:
    assert all_take(1, f"ours {kind}")


@horovods
def test_a_mixin_over_horovods_state_of_tensorflow_follows_the_newest_commit(kind: str) -> None:
    assert all_take(1, f"over_horovods {kind}")


@users
def test_a_mixin_over_a_users_state_of_tensorflow_follows_the_newest_commit(kind: str) -> None:
    assert all_take(1, f"over_users {kind}")


@pytest.mark.parametrize("kind", [*KINDS[:2], *USERS])
def test_an_unmodified_state_of_tensorflow_follows_rank_0(kind: str) -> None:
    assert all_take(0, f"unmodified {kind}")


def test_an_unmodified_state_of_variables_is_not_synced_at_all_but_for_its_values() -> None:
    """Its sync sends no variable without a session of TensorFlow 1, so the ranks go on with different ones."""
    first, last = (rank["newest"]["unmodified variables"] for rank in together())
    assert first["after"] != last["after"]


@pytest.mark.parametrize("row", ["ours", "over_horovods"])
@horovods
def test_a_sync_of_equal_states_of_tensorflow_sends_none_of_their_variables(row: str, kind: str) -> None:
    assert [rank["again"][f"{row} {kind}"] for rank in together()] == [0, 0]


# Exact samples


def exactly_once(kind: str) -> bool:
    return sorted(sample for rank in together() for sample in rank["consumed"][kind]) == list(range(22))


@horovods
def test_a_state_of_tensorflow_with_our_dataset_consumes_each_sample_once(kind: str) -> None:
    assert exactly_once(f"ours {kind}")


@horovods
def test_a_mixin_over_horovods_state_of_tensorflow_with_our_dataset_consumes_each_sample_once(kind: str) -> None:
    assert exactly_once(f"over_horovods {kind}")


@users
def test_a_mixin_over_a_users_state_of_tensorflow_with_our_dataset_consumes_each_sample_once(kind: str) -> None:
    assert exactly_once(f"over_users {kind}")


def test_an_unmodified_state_of_keras_with_horovods_callbacks_trains_again_with_samples_of_an_interrupted_epoch() -> (
    None
):
    trained = Counter(alone()["trained by Horovod's callbacks"])
    assert [trained[sample] for sample in range(8)] == [2] * 5 + [1] * 3


# Several training functions


@horovods
def test_a_call_with_a_state_of_tensorflow_is_skipped_when_it_is_over(kind: str) -> None:
    assert alone()["skips a finished call"][f"ours {kind}"] is True


@horovods
def test_a_call_with_a_mixin_over_horovods_state_of_tensorflow_is_skipped_when_it_is_over(kind: str) -> None:
    assert alone()["skips a finished call"][f"over_horovods {kind}"] is True


@users
def test_a_call_with_a_mixin_over_a_users_state_of_tensorflow_is_skipped_when_it_is_over(kind: str) -> None:
    assert alone()["skips a finished call"][f"over_users {kind}"] is True


@unmodified
def test_a_call_with_an_unmodified_state_of_tensorflow_is_run_again_by_whoever_comes_later(kind: str) -> None:
    assert alone()["skips a finished call"][f"unmodified {kind}"] is False
