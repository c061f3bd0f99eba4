"""A real job tells a collector, TensorBoard and whoever asks its agents."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.integration.agent.test_metrics import read
from tests.integration.launcher.conftest import COUNTER, Launched
from tests.support.serving import serving
from tests.unit.launcher.exports.test_event_file import scalars
from tests.unit.launcher.exports.test_otlp import ENDPOINT, spans

pytestmark = pytest.mark.timeout(300)


def test_a_killed_rank_is_a_span_and_the_series_of_steps_goes_on_behind_it(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched.set_hosts("localhost:2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(200) as server:
        monkeypatch.setenv(ENDPOINT, server.url)
        options = ("-np", "2", "--min-np", "1", "--rsh", "local", "--job", "counts")
        told = ("--agent-metrics", str(port), "--tensorboard", str(tmp_path / "board"))
        with launched.run(*options, *told, sys.executable, COUNTER, str(10**6)) as process:
            launched.wait_for_steps(2, timeout=200)
            figures = read(port)
            os.kill(launched.events("spawned")[-1].get("pid"), signal.SIGKILL)
            launched.wait_for("another world", lambda: len(launched.events("resized")) > 1, timeout=100)
            launched.wait_for("its steps", lambda: launched.events("stepped")[-1].generation > 1, timeout=100)
            process.send_signal(signal.SIGTERM)
            process.wait(100)
    assert figures['hvd_elastic_agent_processes{state="live"}'] == "2.0"
    assert float(figures['hvd_elastic_agent_commit_memory_bytes{slot="0"}']) > 0
    resizes = [span for span in spans(server) if span.name == "resize"]
    causes = [{pair.key: pair.value for pair in span.attributes}["hvd_elastic.cause"].string_value for span in resizes]
    assert causes[:2] == [record.get("cause") for record in launched.events("resized")[:2]]
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in resizes)
    [run] = {record.get("run") for record in launched.events("started")}
    found = scalars(tmp_path / "board/counts" / run)
    steps = [step for step, _ in found["job/world_size"]]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] == launched.events("stepped")[-1].get("step")
    assert dict(found["training/count"])[steps[-1]] == launched.events("stepped")[-1].get("values")["count"]
