"""A real job of which a rank is killed tells a collector, TensorBoard, and whoever asks the launcher or its agents."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.agent.test_metrics import read as read_agent
from tests.integration.launcher.conftest import COUNTER, Launched
from tests.support.serving import serving
from tests.unit.launcher.exports.test_event_file import scalars
from tests.unit.launcher.exports.test_otlp import ENDPOINT, spans

pytestmark = pytest.mark.timeout(300)


class Told(NamedTuple):
    """What was told of the job, and its journal."""

    job: Launched
    agent: dict[str, str]
    """By the agent, before the kill."""
    figures: list[dict[str, float]]
    """By the launcher: without a world, in the first world and in the second one."""
    spans: Sequence[Any]
    board: Path


def read(job: Launched) -> dict[str, float]:
    """The launcher's figures, by name; of those with labels the sum."""
    [address] = re.findall(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", job.process.output)
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = str(answer.read(), "utf-8")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("exports")
    job, board = Launched(folder), folder / "board"
    job.set_hosts("localhost:2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(200) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENDPOINT, server.url)
        options = ("-np", "2", "--min-np", "1", "--rsh", "local", "--job", "counts")
        where = ("--metrics", "0", "--agent-metrics", str(port), "--tensorboard", str(board))
        with job.run(*options, *where, sys.executable, COUNTER, str(10**6)) as process:
            job.wait_for("the metrics", lambda: "/metrics" in process.output)
            figures = [read(job)]
            job.wait_for_steps(2, timeout=200)
            job.wait_for("a heartbeat with a step", lambda: read(job)["hvd_elastic_step"] > 0)
            agent = read_agent(port)
            figures.append(read(job))
            os.kill(job.events("spawned")[-1].get("pid"), signal.SIGKILL)
            job.wait_for("another world", lambda: len(job.events("resized")) > 1, timeout=100)
            job.wait_for("its figures", lambda: read(job)["hvd_elastic_downtime_seconds_total"] > 0)
            figures.append(read(job))
            job.wait_for("its steps", lambda: job.events("stepped")[-1].generation > 1, timeout=100)
            process.send_signal(signal.SIGTERM)
            process.wait(100)
    return Told(job, agent, figures, spans(server), board)


def test_a_killed_rank_shows_in_the_figures_with_its_cause_and_cost(told: Told) -> None:
    at_first, before, after = told.figures
    assert at_first["hvd_elastic_world_size"] == 0
    assert (before["hvd_elastic_world_size"], before["hvd_elastic_worlds_total"]) == (2, 1)
    assert before["hvd_elastic_process_exits_total"] == 0
    assert after["hvd_elastic_process_exits_total"] == after["hvd_elastic_strikes_total"] == 1
    assert after["hvd_elastic_worlds_total"] >= 2
    assert after["hvd_elastic_downtime_seconds_total"] > 0


def test_a_killed_rank_is_a_span_and_the_series_of_steps_goes_on_behind_it(told: Told) -> None:
    assert told.agent['hvd_elastic_agent_processes{state="live"}'] == "2.0"
    assert float(told.agent['hvd_elastic_agent_commit_memory_bytes{slot="0"}']) > 0
    resizes = [span for span in told.spans if span.name == "resize"]
    causes = [{pair.key: pair.value for pair in span.attributes}["hvd_elastic.cause"].string_value for span in resizes]
    assert causes[:2] == [record.get("cause") for record in told.job.events("resized")[:2]]
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in resizes)
    [run] = {record.get("run") for record in told.job.events("started")}
    found = scalars(told.board / "counts" / run)
    steps = [step for step, _ in found["job/world_size"]]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] == told.job.events("stepped")[-1].get("step")
    assert dict(found["training/count"])[steps[-1]] == told.job.events("stepped")[-1].get("values")["count"]
