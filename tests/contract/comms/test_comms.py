"""What every library promises behind ``Comms`` and ``elastic.wrap``; the checks are in ranks.py and wrapping.py."""

from __future__ import annotations

import sys

import pytest

from tests.contract.comms.conftest import HERE, LIMIT_S, RANKS, free_port, run, without_mpi
from tests.support.processes import run_process

LARGE = 2**62 + 1
TOTALS = [[1, 3, 5], [7, 9, 11]]
# The first test of each library's world waits for it.
pytestmark = pytest.mark.timeout(LIMIT_S + 60)
of_torch = pytest.mark.parametrize("world", ["horovod", "torch", "mpi"], indirect=True)
only_tensorflow = pytest.mark.parametrize("world", ["tensorflow"], indirect=True)
not_horovod = pytest.mark.parametrize("world", ["torch", "mpi"], indirect=True)
only_horovod = pytest.mark.parametrize("world", ["horovod"], indirect=True)
only_torch = pytest.mark.parametrize("world", ["torch"], indirect=True)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("places", [[rank, RANKS, rank] for rank in range(RANKS)]),
        ("broadcast_from_each_root", [[[1], [2]]] * RANKS),
        ("broadcast_into_mapped_memory", [[rank + 7, 8, 8, rank + 7] for rank in range(RANKS)]),
        ("broadcast_in_pieces", [list(range(1, 101))] * RANKS),
        ("broadcast_of_nothing", [1] * RANKS),
        ("broadcast_refuses_what_is_not_flat_bytes", [3] * RANKS),
        ("sums_of_odd_shapes", [[[[0, 6], [2, 8], [4, 10]], 2, [2, 2, 2], []]] * RANKS),
        ("maxima", [[1, -5, LARGE]] * RANKS),
        ("pending_maxima", [[10, 1, 1, 7]] * RANKS),
        ("an_earlier_one_keeps_its_result", [[2, 12]] * RANKS),
        ("dropped_on_one_rank_only", [1, 7]),
        ("two_doors_to_one_world", [[1, 21]] * RANKS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_library_gives_every_rank_the_right_result(saw, check, expected):
    assert saw[check] == expected


@pytest.mark.parametrize(
    ("world", "counted"),
    [
        ("horovod", {"ours": False, "wrapped": True, "its own": True}),
        ("torch", {"ours": False, "wrapped": True, "its own": True, "with DDP": True}),
        ("mpi", {"ours": None, "wrapped": None}),  # a script's calls of mpi4py are not seen
        ("tensorflow", {"ours": False, "its own": True, "in a graph": None}),  # from then on nobody knows
    ],
    ids=["horovod", "torch", "mpi", "tensorflow"],
    indirect=["world"],
)
def test_collectives_of_the_script_are_counted_and_those_of_a_state_are_not(world, counted):
    assert world.saw["what_the_script_begins_is_counted"] == [counted] * RANKS


def test_every_numeric_type_is_added_up(saw):
    for rank in saw["sums_of_every_type"]:
        assert set(map(repr, rank.values())) <= {repr(TOTALS), repr([[float(n) for n in row] for row in TOTALS])}
        assert len(rank) == 10


def test_a_sparse_tensor_is_refused_with_the_remedy(saw):
    assert all("to_dense" in message for message in saw["sum_refuses_sparse"])


def test_fifty_dropped_maxima_leave_nothing_and_the_next_one_works(saw):
    for result, entries, pins in saw["dropped_maxima_leave_nothing"]:
        assert result == 101
        assert entries <= 1
        assert pins <= 4


@pytest.mark.parametrize("world", ["horovod", "mpi", "tensorflow"], indirect=True)
def test_after_a_reset_there_is_a_world_again_and_an_earlier_maximum_never_gets_a_wrong_result(world):
    told = "its world is gone" if "stock_handle_takes_anothers_result" in world.saw else "1"
    assert world.saw["reset_joins_the_next_world"] == [[told, 1001, 1, RANKS]] * RANKS


@only_horovod
def test_a_stock_horovod_handle_of_an_earlier_world_gets_a_wrong_result(saw):
    assert all(got >= 1000 for got in saw["stock_handle_takes_anothers_result"])


@only_horovod
def test_a_lost_peer_is_the_same_error_whatever_the_call(saw):
    """See below for torch."""
    assert saw["losing_a_peer_with_much_under_way"] == [["lost"] * 4, "gone"]


# Horovod for TensorFlow


@only_tensorflow
def test_operations_that_do_not_fit_together_are_the_scripts_own_error_and_not_a_lost_peer(saw):
    assert saw["operations_that_do_not_fit"] == [[*[["FailedPreconditionError", False]] * 3, 1]] * RANKS


@only_tensorflow
def test_an_error_that_does_not_name_a_collective_of_tensorflow_is_not_a_lost_peer(saw):
    assert saw["an_error_of_another_kind"] == [[False, False]] * RANKS


@only_tensorflow
def test_a_peer_that_ends_is_lost_at_once_also_for_those_that_wait_for_it(saw):
    """And so it is in the script's own operations. An error is one line."""
    survivor, other = saw["losing_a_peer_that_others_wait_for"]
    assert other == "gone"
    assert [survivor[0], survivor[1], *survivor[3:]] == ["lost", False, True, "lost", "lost", "lost"]
    assert survivor[2] < 10, "Gloo waits 30 s for a silent peer"


# Two survivors: alone one hangs on stock Horovod but rarely.


@pytest.mark.soak
def test_a_peer_may_be_lost_during_many_operations(tmp_path):
    check = "losing_a_peer_with_much_under_way"
    world = run("horovod", tmp_path, check, ranks=3)
    assert world.saw[check] == [["lost"] * 4, ["lost"] * 4, "gone"], world.output


@pytest.mark.soak
def test_stock_horovod_hangs_when_a_peer_is_lost_during_many_operations(tmp_path):
    """By chance, more often than not: some runs see the loss."""
    for number in range(8):
        directory = tmp_path / str(number)
        directory.mkdir()
        world = run("horovod", directory, "stock_losing_a_peer_with_much_under_way", ranks=3)
        if world.codes != [0]:
            break
    assert world.codes != [0], "it never hung"
    assert "Timeout (0:00:05)!" in world.output


@only_torch
def test_leaving_a_world_of_torch_ends_the_process_at_once_and_its_peer_sees_the_loss_in_every_call(world):
    assert world.codes == [75, 0]
    assert "start the workers again" in world.output
    assert "Traceback" not in world.output
    assert world.saw["leaving_does_not_wait_for_living_peers"] == ["leaving", ["lost"] * 3]


def test_a_world_of_one_needs_no_communication():
    libraries = ["horovod", "torch"] + ["mpi"] * (without_mpi() is None)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "1", "RANK": "0"}
    with run_process([sys.executable, HERE / "alone.py", *libraries], env={**place, "OMP_NUM_THREADS": "1"}) as process:
        assert process.wait(LIMIT_S) == 0, process.output
        assert process.stdout.splitlines() == [f"{name} 0 1 0 True [1.0, 1.0, 1.0] -7 {LARGE}" for name in libraries]


# Averaging: equal on all ranks, and to one process with the whole batch.


def assert_equal_everywhere_and_to_one_process(pairs):
    assert all(together == pairs[0][0] for together, _ in pairs), "ranks differ"
    assert pairs[0][0] == pytest.approx(pairs[0][1], rel=1e-9, abs=1e-12)


@of_torch
def test_a_step_is_accumulating_between_its_passes_only(saw):
    assert saw["accumulating_between_passes_only"] == [[False, True, True, False]] * RANKS


@of_torch
@pytest.mark.parametrize("check", ["wrapped_sgd", "wrapped_adamw", "wrapped_with_two_passes", "wrapped_with_clipping"])
def test_training_on_many_ranks_equals_training_on_one_with_the_whole_batch(saw, check):
    assert_equal_everywhere_and_to_one_process(saw[check])


def assert_shares_follow_speed(saw):
    assert_equal_everywhere_and_to_one_process([(together, alone) for together, alone, _ in saw])
    assert saw[0][2] == saw[1][2], "ranks differ"
    assert all(fast + slow == 24 for fast, slow in saw[0][2])
    # 16 each time, if the machine did nothing else; it may slow either rank for some steps.
    assert any(14 <= fast <= 18 for fast, _ in saw[0][2]), "shares stay equal"


@of_torch
def test_ranks_of_unlike_speed_get_unlike_shares_and_train_as_one_process_with_the_whole_batch(saw):
    assert_shares_follow_speed(saw["shares_by_measured_speed"])


@only_torch
def test_under_ddp_the_wait_within_backward_does_not_make_ranks_look_alike(saw):
    assert_shares_follow_speed(saw["shares_by_measured_speed_under_ddp"])


@not_horovod
@pytest.mark.parametrize("check", ["wrapped_with_a_scheduler_made_first", "wrapped_lbfgs"])
def test_schedulers_made_before_and_steps_with_closures_average_too(saw, check):
    assert_equal_everywhere_and_to_one_process(saw[check])


@of_torch
def test_an_infinity_on_one_rank_makes_all_skip_the_step(saw):
    first = saw["wrapped_with_a_loss_scaler"][0]
    assert first[1] == 4.0
    assert all(abs(value) < 100 for value in first[0])
    assert all(rank == first for rank in saw["wrapped_with_a_loss_scaler"])


@not_horovod
def test_a_parameter_unused_on_some_ranks_counts_as_zero_there_and_one_unused_on_all_is_left_alone(saw):
    assert saw["what_is_unused_stays_untouched"] == [[rank != 1, False, True, True] for rank in range(RANKS)]


@not_horovod
def test_gradients_of_all_sizes_and_types_are_averaged_each_by_itself(saw):
    for rank in saw["small_and_large_gradients_of_several_types"]:
        assert rank == [[-(number * 3.0 + 2.0)] for number in range(18)]


@not_horovod
def test_sparse_gradients_are_refused_or_made_dense(saw):
    for message, weights in saw["sparse_gradients"]:
        assert "sparse_as_dense=True" in message
        assert weights == pytest.approx([-1, -1, 0, 0])


@not_horovod
def test_a_wrapped_optimizer_keeps_its_class_hooks_and_state_and_its_copies_are_plain(saw):
    assert saw["wrapped_is_a_real_optimizer"] == [[True, "AdamW", 1, True, True, 0.1]] * RANKS
