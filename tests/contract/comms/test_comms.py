"""What every implementation of ``Comms`` promises, in worlds of three processes; the checks are in ``ranks.py``."""

from __future__ import annotations

import json

import pytest

from tests.contract.comms.conftest import LIBRARIES, RANKS, seen, without_mpi, world

LARGE = 2**62 + 1
TOTALS = [[3, 6, 9], [12, 15, 18]]


def on_all(value: object) -> list[object]:
    return [value] * RANKS


def test_every_rank_knows_its_place(saw):
    assert saw["places"] == [[rank, RANKS, rank] for rank in range(RANKS)]


def test_any_rank_can_be_the_root_of_a_broadcast(saw):
    assert saw["broadcast_from_each_root"] == on_all([[1], [2], [3]])


def test_a_broadcast_fills_mapped_memory_and_only_the_part_it_was_given(saw):
    assert saw["broadcast_into_mapped_memory"] == [[rank + 7, 8, 8, rank + 7] for rank in range(RANKS)]


def test_a_broadcast_in_many_pieces_is_whole(saw):
    assert saw["broadcast_in_pieces"] == on_all(list(range(2, 102)))


def test_a_broadcast_of_no_bytes_is_one(saw):
    assert saw["broadcast_of_nothing"] == on_all(1)


def test_a_broadcast_refuses_anything_but_flat_bytes_before_anything_is_sent(saw):
    assert saw["broadcast_refuses_what_is_not_flat_bytes"] == on_all(3)


def test_every_numeric_type_is_added_up(saw):
    for rank in saw["sums_of_every_type"]:
        assert set(map(repr, rank.values())) <= {repr(TOTALS), repr([[float(n) for n in row] for row in TOTALS])}
        assert len(rank) == 10


def test_transposed_scalar_tracked_and_empty_tensors_are_added_up(saw):
    assert saw["sums_of_odd_shapes"] == on_all([[[0, 9], [3, 12], [6, 15]], 6, [3, 3, 3], []])


def test_a_sparse_tensor_is_refused_with_the_remedy(saw):
    assert all("to_dense" in message for message in saw["sum_refuses_sparse"])


def test_a_maximum_has_all_64_bits_and_a_sign(saw):
    assert saw["maxima"] == on_all([2, -5, LARGE])


def test_a_pending_maximum_can_be_read_late_in_any_order_and_twice(saw):
    assert saw["pending_maxima"] == on_all([20, 2, 2, 7])


def test_fifty_dropped_maxima_leave_nothing_and_the_next_one_works(saw):
    for result, entries in saw["dropped_maxima_leave_nothing"]:
        assert result == 102
        assert entries <= 1


def test_a_second_maximum_of_a_name_leaves_the_first_its_result(saw):
    assert saw["an_earlier_one_keeps_its_result"] == on_all([3, 13])


def test_two_comms_of_one_world_do_not_disturb_each_other(saw):
    assert saw["two_doors_to_one_world"] == on_all([2, 22])


@pytest.mark.parametrize("saw", ["horovod", "mpi"], indirect=True)
def test_after_a_reset_there_is_a_world_again(saw):
    for told, fresh, largest, size in saw["reset_joins_the_next_world"]:
        assert (fresh, largest, size) == (1002, 2, RANKS)
        assert told in ("its world is gone", "2")


@pytest.mark.parametrize("saw", ["horovod"], indirect=True)
def test_a_maximum_of_an_earlier_world_never_gets_a_wrong_result(saw):
    assert [told for told, *_ in saw["reset_joins_the_next_world"]] == on_all("its world is gone")


@pytest.mark.parametrize("saw", ["horovod"], indirect=True)
def test_a_stock_horovod_handle_of_an_earlier_world_gets_a_wrong_result(saw):
    assert all(got >= 1000 for got in saw["stock_handle_takes_anothers_result"])


@pytest.mark.parametrize("saw", ["horovod", "torch"], indirect=True)
def test_a_lost_peer_is_the_same_error_whatever_the_call_and_the_library(saw):
    assert saw["lost_peer_is_one_kind_of_error"] == [["lost"] * 3, ["lost"] * 3, "gone"]


def test_a_peer_may_be_lost_during_many_operations(tmp_path):
    check = "losing_a_peer_with_much_under_way"
    with world("horovod", tmp_path, (check,)) as [launcher]:
        launcher.wait(timeout=60)
    assert seen(tmp_path, check) == ["lost", "lost", "gone"], launcher.output


def test_stock_horovod_hangs_when_a_peer_is_lost_during_many_operations(tmp_path):
    check = "losing_a_peer_with_much_under_way"
    with world("horovod", tmp_path, (f"stock_{check}",)) as [launcher]:
        assert launcher.wait(timeout=60) != 0
    assert "Timeout (0:00:05)!" in launcher.output


def test_leaving_a_world_of_torch_ends_the_process_at_once_though_a_peer_lives_and_never_answers(tmp_path):
    check = "leaving_does_not_wait_for_living_peers"
    with world("torch", tmp_path, (check,)) as ranks:
        for rank in (0, 1):
            assert ranks[rank].wait(timeout=60) == 75
            assert "Traceback" not in ranks[rank].output
            assert "start the workers again" in ranks[rank].stderr
            (tmp_path / f"left.{rank}").touch()
        assert ranks[2].wait(timeout=60) == 0
    assert seen(tmp_path, check) == ["leaving", "leaving", "stayed"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_world_of_one_needs_no_communication(library, tmp_path):
    if library == "mpi" and (reason := without_mpi()):
        pytest.skip(reason)
    with world(library, tmp_path, ("alone",), ranks=1) as processes:
        assert processes[0].wait(timeout=60) == 0, processes[0].output
    found = json.loads((tmp_path / "alone.0.json").read_text())
    assert found == [[0, 1, 0], True, [1, 1, 1], [-7, LARGE]]
