"""Another user fills every connection of a daemon that listens on TCP."""

import contextlib
import http.client
import io
import sys
import time
from pathlib import Path

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.sources.hosts import HostFeed, PushSource
from tests.support.processes import run_process
from tests.support.waiting import wait_until

CROWD = 600
"""More than the daemon serves at a time."""

ROUNDS = 6
"""In each of which all connections are used, and those that the daemon has ended come again. Together they take longer
than a request may."""


def asked(port: int, target: str) -> tuple[int, float]:
    """The status, and the seconds until it was there; at most 5, as long as probes of the manifests wait."""
    before = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", target)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - before


def test_whatever_a_crowd_does_probes_are_answered_and_the_launcher_hears_of_hosts(place):
    place.watched.write_text("a:1\n")
    with place.run("--listen", "127.0.0.1:0") as daemon, contextlib.ExitStack() as stack:
        port = int(daemon.wait_for(r"listening: http://127.0.0.1:(\d+)")[1])
        wait_until(lambda: asked(port, "/readyz")[0] == 200, what="the first publication")
        feed = HostFeed(Journal(io.StringIO(), SystemClock()))
        push = PushSource(f"http://127.0.0.1:{port}", feed)
        stack.callback(push.stop)
        push.start()
        wait_until(lambda: "a" in feed.hosts(), what="the launcher to know of a")
        for how in ("drip", "deaf"):
            crowd = [Path(__file__).with_name("many_connections.py"), "127.0.0.1", str(port), str(CROWD), how]
            with run_process([sys.executable, *crowd]) as attack:
                attack.wait_for("round", timeout=60)
                answers = []
                while attack.stdout.count("round") <= ROUNDS:
                    answers += [asked(port, "/livez"), asked(port, "/hosts")]
                    time.sleep(0.1)
                place.watched.write_text(f"a:1\n{how}:1\n")
                wait_until(
                    lambda how=how: how in feed.hosts(), what="the launcher to know it", show=lambda: feed.reason
                )
                assert attack.returncode is None, attack.output
            assert len(answers) >= 2 * ROUNDS
            assert {status for status, _ in answers} == {200}, how
            took = sorted(seconds for _, seconds in answers)
            assert took[len(took) * 9 // 10] < 1.0, took  # a busy machine may hold up one or another
