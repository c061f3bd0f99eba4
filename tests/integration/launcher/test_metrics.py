"""A real job tells Prometheus what it does."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.launcher.conftest import COUNTER, Launched

pytestmark = pytest.mark.timeout(300)


def read(launched: Launched) -> dict[str, float]:
    """The figures, by name; of those with labels the sum."""
    [address] = re.findall(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", launched.process.output)
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = str(answer.read(), "utf-8")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_a_killed_rank_shows_in_the_figures_with_its_cause_and_cost(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    sizes = ("-np", "2", "--min-np", "1", "--rsh", "local", "--metrics", "0")
    with launched.run(*sizes, sys.executable, COUNTER, str(10**6)):
        launched.wait_for("the metrics", lambda: "/metrics" in launched.process.output)
        assert read(launched)["hvd_elastic_world_size"] == 0
        launched.wait_for_steps(2, timeout=200)
        launched.wait_for("a heartbeat with a step", lambda: read(launched)["hvd_elastic_step"] > 0)
        before = read(launched)
        os.kill(launched.events("spawned")[-1].get("pid"), signal.SIGKILL)
        launched.wait_for("another world", lambda: len(launched.events("resized")) > 1)
        after = read(launched)
    assert (before["hvd_elastic_world_size"], before["hvd_elastic_worlds_total"]) == (2, 1)
    assert "hvd_elastic_process_exits_total" not in before
    assert after["hvd_elastic_process_exits_total"] == after["hvd_elastic_strikes_total"] == 1
    assert after["hvd_elastic_worlds_total"] >= 2
    assert after["hvd_elastic_downtime_seconds_total"] > 0
