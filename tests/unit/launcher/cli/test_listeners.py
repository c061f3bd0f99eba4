"""The receivers of a job's events."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli.listeners import listeners
from hvd_elastic_ext.launcher.cli.run_options import parse
from tests.support.clock import ManualClock
from tests.support.serving import serving
from tests.unit.launcher.exports.test_event_file import scalars
from tests.unit.launcher.exports.test_otlp import ENDPOINT, spans

ABOUT = {"job": "digits", "run": "r1"}


def test_nobody_hears_of_a_job_unless_its_options_or_the_environment_say_so() -> None:
    heard = listeners(parse(["-np", "1", "true"], {}), ManualClock(), ABOUT, {})
    assert heard == (None, None, None, None)
    sink = io.StringIO()
    assert heard.tee(sink, ManualClock()) is sink
    heard.close()


def test_each_that_is_named_hears_of_all_and_has_told_it_at_the_end(tmp_path: Path, monkeypatch) -> None:
    with serving(200) as server:
        monkeypatch.setenv(ENDPOINT, server.url)
        words = ["-np", "1", "--job", "digits", "--metrics", "0", "--tensorboard", str(tmp_path), "true"]
        heard = listeners(parse(words, {}), ManualClock(), ABOUT, {ENDPOINT: "set"})
        assert heard.counters is not None
        for note in heard.notes():
            note("stepped", {"step": 3, "size": 2, "values": {"loss": 0.5}})
            note("training_restarted", {"steps_lost": 3})
        line = '{"t":5,"mono":5,"generation":1,"event":"sealed","step":3,"seconds":1}\n'
        heard.tee(io.StringIO(), ManualClock()).write(line)
        heard.close()
    assert scalars(tmp_path / "digits/r1")["training/loss"] == [(3, 0.5)]
    assert [span.name for span in spans(server)] == ["checkpoint.write", "checkpoint"]
    assert {figure.name: figure for figure in heard.counters.metrics()}["restarts_from_scratch"].samples == {(): 1}


def test_figures_that_nobody_can_count_end_no_job_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["-np", "1", "--job", "digits", "--metrics", "0", "--tensorboard", str(tmp_path), "true"]
    heard = listeners(parse(words, {}), ManualClock(), ABOUT, {})
    for note in heard.notes():
        for step in (1, 10**400, 2, 10**400, 3):
            note("stepped", {"step": step, "size": 2})
    heard.close()
    assert [step for step, _ in scalars(tmp_path / "digits/r1")["job/world_size"]] == [1, 2, 3]
    assert sum("figures of 'stepped' are left out: OverflowError" in text for text in caplog.messages) <= 2
    assert heard.counters is not None
    assert heard.counters.metrics()


@pytest.mark.parametrize("place", ["", "s3://bucket/runs"])
def test_scalars_go_into_a_folder_that_is_named(place: str) -> None:
    with pytest.raises(UsageError, match=f"--tensorboard '{place}': that is not a folder of this machine"):
        parse(["-np", "1", "--tensorboard", place, "true"], {})
