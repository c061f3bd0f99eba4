"""Changes of a world whose processes cannot change worlds. ``test_restarting.py`` has the other cases."""

from __future__ import annotations

from hvd_elastic_ext.launcher.membership.in_place_or_restarted import members_in
from hvd_elastic_ext.launcher.membership.world_change import Stage
from tests.unit.launcher.membership.test_world_change import process, situation


def test_living_members_come_in_the_order_of_their_world_so_that_a_replay_sends_the_same() -> None:
    there = [process(name) for name in "hbdaecg"] + [process("f", Stage.BOOTING)]
    assert "".join(life.seat.host for life in members_in(situation("", there, "cafebdhg"))) == "caebdhg"
