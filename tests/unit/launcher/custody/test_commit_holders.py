"""The notes about commits that outlive the launcher."""

from __future__ import annotations

from hvd_elastic_ext.launcher.custody.holders import ORPHANED, Holders, Reachability
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

A, A1, B = Seat("a", 0), Seat("a", 1), Seat("b", 0)


def noted(holders: Holders) -> Holders:
    """Return the holders that the next launcher makes from the notes."""
    after = Holders()
    after.expect(holders.noted(), now=50.0)
    return after


def test_what_a_host_holds_is_noted_beside_what_is_gone_of_it() -> None:
    holders = Holders()
    holders.reported(A, (1, 1, 9), 90, agent="a-1")
    holders.agent_ended("a", "its agent has ended")
    holders.reported(A, (1, 1, 6), 60, agent="a-2")
    found = {(each.commit, each.reach) for each in noted(holders).holdings({})}
    assert found == {((1, 1, 9), Reachability.GONE), ((1, 1, 6), Reachability.NOT_CONNECTED)}


def test_of_several_slots_of_a_host_the_newest_commit_is_noted() -> None:
    holders = Holders()
    holders.reported(A, (1, 1, 10), 100, agent="a-1")
    holders.reported(A1, (1, 1, 8), 80, agent="a-1")
    [left] = holders.left_behind(None)
    assert (left.host, left.step) == ("a", 100)
    assert [each.step for each in noted(holders).holdings({})] == [100]


def test_that_a_loss_was_reported_is_noted() -> None:
    holders = Holders()
    holders.reported(A, (1, 1, 9), 90, agent="a-1")
    holders.reported(B, (1, 1, 6), 60, agent="b-1")
    holders.agent_lost("a", last_message_at=40.0, why="the connection was reset")
    holders.world_formed([B])
    assert {each.seat.host: each.loss_reported for each in noted(holders).holdings({})} == {"a": True, "b": False}


def test_memory_that_was_given_back_is_gone_with_what_it_held() -> None:
    holders = Holders()
    holders.reported(A, (1, 1, 9), 90, agent="a-1")
    holders.forgotten(A)
    [gone] = holders.holdings({})
    assert (gone.reach, gone.step, gone.why) == (Reachability.GONE, 90, "its memory was given back")


def test_memory_that_was_given_back_while_its_agent_was_away_is_gone_too() -> None:
    holders = Holders()
    holders.reported(A, (1, 1, 9), 90, agent="a-1")
    holders.agent_lost("a", last_message_at=40.0, why="the connection was reset")
    holders.agent_joined("a", "a-1", {})
    [gone] = holders.holdings({})
    assert (gone.reach, gone.step, gone.why) == (Reachability.GONE, 90, "its memory was given back")


def test_what_an_agent_held_that_ended_while_no_launcher_ran_is_gone_with_that_cause() -> None:
    holders = Holders()
    holders.reported(A, (1, 1, 9), 90, agent="a-1")
    after = noted(holders)
    after.agent_joined("a", "a-2", {})
    [gone] = after.holdings({})
    assert (gone.reach, gone.step, gone.why) == (Reachability.GONE, 90, ORPHANED)
    assert "--orphan-grace" in gone.why
