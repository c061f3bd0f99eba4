"""Real jobs with a spare: a killed worker is replaced in the very next world."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from hvd_elastic_ext.core.journal import Record
from tests.integration.launcher.conftest import COUNTER, Ask, Launched


def ready_spare(launched: Launched, size: int) -> Record:
    """Wait until a world trains, and a spare is ready beside it. Return the line of its start."""
    launched.wait_for_steps(size, timeout=120)
    launched.wait_for("a spare", lambda: len(launched.events("parked")) > size, timeout=120)
    launched.wait_for("more steps", lambda: launched.steps_at(size) > 20)
    assert len(launched.events("resized")) == 1  # nobody was interrupted for it
    return launched.events("spawned")[-1]


def kill(launched: Launched, host: str, slot: int, *, spare: Record) -> Record:
    """Kill a member; return the line of the world that follows, once it trains."""
    started = {(each.get("host"), each.get("slot")): each.get("pid") for each in launched.events("spawned")}
    os.kill(started[host, slot], signal.SIGKILL)
    launched.wait_for("the next world", lambda: len(launched.events("resized")) > 1)
    launched.wait_for_steps(3)
    (_, world) = launched.events("resized")
    assert world.generation == launched.events("resized")[0].generation + 1  # no world was called between them
    assert world.get("cause") == "worker failed"
    assert world.get("size") == 3
    assert world.get("spares") == [f"{spare.get('host')}[{spare.get('slot')}]"]
    assert 0 <= world.get("steps_lost") <= 5  # one in five steps is committed
    return world


def test_a_killed_worker_is_replaced_by_the_spare_of_a_surplus_host(launched: Launched, ask: Ask) -> None:
    launched.set_hosts("localhost:2", "127.0.0.2:1", "127.0.0.3:1")
    options = ("-np", "3", "--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "1", "1", "--job", "spared")
    with launched.run(*options, sys.executable, COUNTER) as process:
        spare = ready_spare(launched, 3)
        assert (spare.get("host"), spare.get("slot")) == ("127.0.0.3", 0)
        assert "spares: 1 ready" in ask("status", "spared").out
        assert re.search(r"^127\.0\.0\.3 +1/1 +free +spares: 1 ready$", ask("hosts", "list", "spared").out, re.M)
        world = kill(launched, "127.0.0.2", 0, spare=spare)
        assert world.get("hosts") == {"localhost": 2, "127.0.0.3": 1}
        launched.wait_for("the next spare", lambda: len(launched.events("spawned")) == 5)
        assert launched.events("spawned")[-1].get("host") == "127.0.0.2"
        process.terminate()
        assert process.wait(60) == 143, process.output
        assert process.tree() == []


@pytest.mark.soak
def test_a_killed_worker_is_replaced_by_a_spare_in_an_extra_seat_of_its_host(launched: Launched) -> None:
    launched.set_hosts("localhost:3")
    options = ("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "1", "1", "--spares", "1")
    with launched.run(*options, sys.executable, COUNTER) as process:
        spare = ready_spare(launched, 3)
        assert spare.get("slot") == 3
        kill(launched, "localhost", 2, spare=spare)
        launched.wait_for("its slot as the next spare", lambda: len(launched.events("spawned")) == 5)
        assert launched.events("spawned")[-1].get("slot") == 2
        launched.wait_for("more steps", lambda: launched.steps_at(3) > 20)
        assert len(launched.events("resized")) == 2
        process.terminate()
        assert process.wait(60) == 143, process.output
        assert process.tree() == []
