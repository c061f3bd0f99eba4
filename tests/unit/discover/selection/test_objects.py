"""Rule R11: what is known of a cluster follows from its events, however late, doubled or replayed they come."""

from dataclasses import replace

import pytest

from discover.selection.objects import (
    ClusterSnapshot,
    Gone,
    Listed,
    NodesHidden,
    NodeView,
    PodView,
    Seen,
    older,
)
from tests.unit.discover.pictures import node, picture, pod

FIRST = pod("w-0", uid="u1", version=10)


def uids(snapshot: ClusterSnapshot) -> dict[str, tuple[str, str]]:
    assert snapshot.pods is not None
    return {key.name: (each.uid, each.version) for key, each in snapshot.pods.items()}


def test_nothing_is_known_until_both_were_listed_whole():
    nothing = ClusterSnapshot().apply([Seen(FIRST), Seen(node())])
    assert (nothing.pods, nothing.nodes, nothing.complete) == (None, None, False)
    pods = nothing.apply([Listed(PodView, (FIRST,))])
    assert not pods.complete
    assert pods.apply([Listed(NodeView, ())]).complete


def test_rule_10_a_pod_that_is_added_twice_is_one_pod_in_its_newer_state():
    seen = picture([FIRST]).apply([Seen(FIRST), Seen(replace(FIRST, version="11", phase="Failed")), Seen(FIRST)])
    assert uids(seen) == {"w-0": ("u1", "11")}


def test_rule_10_a_replayed_change_with_a_lower_version_changes_nothing():
    old = replace(FIRST, version="9", phase="Pending")
    assert picture([FIRST]).apply([Seen(old)]).pods == picture([FIRST]).pods


def test_versions_are_compared_as_numbers_of_any_length():
    assert older("9", "10")
    assert not older("10", "9")
    assert not older("10", "10")
    assert older("99999999999999999999", "100000000000000000000")


@pytest.mark.parametrize("odd", ["", "abc", "0x1", "007", "-1", "٣"])
def test_a_version_that_is_no_number_is_never_too_old(odd):
    assert not older(odd, "10")
    assert not older("10", odd)


def test_rule_10_the_deletion_of_an_earlier_pod_of_the_same_name_changes_nothing():
    second = pod("w-0", uid="u2", version=12)
    seen = picture([FIRST]).apply([Seen(second), Gone(replace(FIRST, version="13"))])
    assert uids(seen) == {"w-0": ("u2", "12")}


def test_a_pod_that_left_the_selector_is_gone_and_may_come_back():
    gone = picture([FIRST]).apply([Gone(replace(FIRST, version="11"))])
    assert uids(gone) == {}
    assert uids(gone.apply([Seen(replace(FIRST, version="12"))])) == {"w-0": ("u1", "12")}


def test_rule_11_a_list_always_wins_even_with_lower_versions_as_after_a_restored_store():
    seen = picture([FIRST, pod("w-1", version=11)]).apply([Listed(PodView, (replace(FIRST, version="3"),))])
    assert uids(seen) == {"w-0": ("u1", "3")}
    assert uids(seen.apply([Seen(replace(FIRST, version="4"))])) == {"w-0": ("u1", "4")}


def test_rule_12_a_pod_that_was_deleted_while_nobody_watched_is_gone_after_the_next_list():
    assert uids(picture([FIRST, pod("w-1")]).apply([Listed(PodView, (FIRST,))])) == {"w-0": ("u1", "10")}


def test_nodes_follow_the_same_rules():
    first, second = node("n", uid="n1", version=10), node("n", uid="n2", version=20)
    seen = picture([], [first]).apply([Seen(replace(first, version="9")), Seen(second), Gone(first)])
    assert seen.nodes is not None
    assert seen.nodes["n"].uid == "n2"
    assert seen.apply([Gone(second)]).nodes == {}


def test_hidden_nodes_are_not_missing_ones_and_may_be_shown_later():
    hidden = picture([FIRST], [node()]).apply([NodesHidden()])
    assert (hidden.nodes, hidden.complete) == (None, True)
    assert hidden.apply([Seen(node())]).nodes is None
    shown = hidden.apply([Listed(NodeView, (node(),))])
    assert (shown.nodes_hidden, list(shown.nodes or {})) == (False, ["node-0"])


def test_a_snapshot_is_not_changed_by_what_comes_after_it():
    before = picture([FIRST])
    before.apply([Gone(FIRST)])
    assert uids(before) == {"w-0": ("u1", "10")}
    with pytest.raises(TypeError):
        before.pods[FIRST.key] = FIRST  # type: ignore[index]
