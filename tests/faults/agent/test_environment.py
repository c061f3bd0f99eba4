"""An agent gets environment and command of a job's processes on its standard input, never over its connection."""

from __future__ import annotations

import hashlib
import json
import sys

from tests.faults.agent.launching import Begin, Launcher, Session, launching
from tests.support.waiting import wait_until

LOOK = """
import hashlib, os, sys
sizes = sum(len(value) for name, value in os.environ.items() if name.startswith("LARGE"))
print(hashlib.sha256(os.environ["MY_SECRET"].encode()).hexdigest(), os.environ["SEAT"], sys.argv[1:], sizes, flush=True)
"""
ARGV = [sys.executable, "-c", LOOK, "a"]


def looked(session: Session, slot: int) -> list[str]:
    wait_until(lambda: session.written(slot).endswith(b"\n"), what=f"what slot {slot} sees", timeout=60)
    return session.written(slot).decode().split()


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def test_an_adopted_agent_gets_the_next_launchers_environment_and_does_not_repeat_it(
    begin: Begin,
) -> None:
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        agent = begin(first, argv=ARGV, env={"MY_SECRET": "hunter2", "SEAT": "0"})
        session = first.session()
        session.order({"do": "start", "slot": 0})
        assert looked(session, 0)[0] == hashed("hunter2")
        first.close()
        large = {f"LARGE_{number}": 100_000 * '"' for number in range(5)}
        newcomer = begin(second, argv=[*ARGV, "again"], env={"MY_SECRET": "rosebud", "SEAT": "0", **large})
        assert newcomer.wait(60) == 0
        assert newcomer.stdout == "adopted\n"
        adopted = second.session()
        assert adopted.hello["pid"] == agent.pid
        assert adopted.hello["seats"].keys() == {"0"}
        adopted.order({"do": "start", "slot": 1, "env": {"SEAT": "5"}})
        assert looked(adopted, 1) == [hashed("rosebud"), "5", "['a',", "'again']", "500000"]
        said = json.dumps(session.said + adopted.said) + agent.output + newcomer.output
        assert not any(word in said for word in ("hunter2", "rosebud", "sha256"))


def test_an_error_about_an_environment_repeats_nothing_of_it(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher, argv=ARGV, env={"MY_SECRET": ["hunter2"]})
    wait_until(lambda: "order refused" in agent.stderr, what="what is wrong", timeout=60)
    assert "'env' must be an object of strings; the one named 'MY_SECRET' is not" in agent.stderr
    assert "hunter2" not in agent.output
