"""Who hears of a job's events."""

from __future__ import annotations

import io
from pathlib import Path

from hvd_elastic_ext.launcher.cli.run_options import parse
from hvd_elastic_ext.launcher.cli.telling.listeners import listeners
from tests.support.clock import ManualClock
from tests.unit.launcher.exports.test_event_file import scalars
from tests.unit.launcher.exports.test_otlp import ENDPOINT, collector

ABOUT = {"job": "digits", "run": "r1"}


def test_nobody_hears_of_a_job_unless_its_options_or_the_environment_say_so() -> None:
    heard = listeners(parse(["-np", "1", "true"], {}), ManualClock(), ABOUT, {})
    assert heard == (None, None, None, None)
    sink = io.StringIO()
    assert heard.tee(sink, ManualClock()) is sink
    heard.close()


def test_each_that_is_named_hears_of_all_and_has_told_it_at_the_end(tmp_path: Path, monkeypatch) -> None:
    with collector() as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_port}")
        words = ["-np", "1", "--job", "digits", "--metrics", "0", "--tensorboard", str(tmp_path), "true"]
        heard = listeners(parse(words, {}), ManualClock(), ABOUT, {ENDPOINT: "set"})
        assert heard.tally is not None
        for note in heard.notes():
            note("stepped", {"step": 3, "size": 2, "values": {"loss": 0.5}})
        line = '{"t":5,"mono":5,"generation":1,"event":"sealed","step":3,"seconds":1}\n'
        heard.tee(io.StringIO(), ManualClock()).write(line)
        heard.close()
    assert scalars(tmp_path / "digits/r1")["training/loss"] == [(3, 0.5)]
    assert [span.name for span in server.spans()] == ["checkpoint.write", "checkpoint"]
    assert "goodput_ratio" in {figure.name for figure in heard.tally.figures()}
