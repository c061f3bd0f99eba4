"""One journal has one goodput, wherever it is shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hvd_elastic_ext.core.goodput import accounted
from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.dashboard.content.model import page_of
from hvd_elastic_ext.dashboard.jobs import Job
from hvd_elastic_ext.dashboard.reading import Reading
from hvd_elastic_ext.dashboard.watch import facts_of
from hvd_elastic_ext.launcher.exports.prometheus import Counters
from hvd_elastic_ext.report.command import main as events
from hvd_elastic_ext.report.job_report import build_report
from hvd_elastic_ext.report.runs import runs
from hvd_elastic_ext.report.table import summary
from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.command import DEMO
from hvd_elastic_ext.simulate.command import main as simulate_command
from hvd_elastic_ext.simulate.job import simulate
from hvd_elastic_ext.simulate.traces.rows import parsed
from tests.support.clock import ManualClock
from tests.support.journals import JournalMaker

TRACE = "time,host,event,notice,slots\n0,a,up,,2\n0,b,up,,2\n900,b,down,60,\n1500,b,up,,2\n2400,a,crash,,\n"


def on_the_page(journal):
    reading = Reading(journal)
    reading.read_all()
    return page_of(facts_of(reading, Job("job", journal.parent, journal), None)).now


def in_metrics(journal):
    """As a launcher counts that writes this journal."""
    clock = ManualClock(mono=0.0)
    counters = Counters(clock.wall, clock.mono)
    with journal.open() as lines:
        for record in read(lines):
            if record.mono > clock.mono():
                clock.advance(record.mono - clock.mono())
            counters.note(record.event, record.fields)
    return {figure.name: dict(figure.samples) for figure in counters.metrics()}["goodput_ratio"][()]


def in_events(journal, capsys):
    assert events([str(journal), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["goodput"]


def simulated(path):
    trace = replace(parsed(TRACE, where="trace"), ends=3600.0)
    times = Times(step_s=0.5, every=10, boot_s=20.0, publish_s=0.0)
    with path.open("w+") as journal:
        return simulate(trace, options.settings({"min_num_proc": 1}, trace), times, journal=journal)


@pytest.mark.parametrize("journal", ["of the demo", "of a simulation"])
def test_events_the_page_metrics_and_simulate_show_the_same(tmp_path, capsys, journal):
    path = DEMO
    if journal == "of a simulation":
        path = tmp_path / "journal.jsonl"
        simulated(path)
    shown = in_events(path, capsys)
    assert 0.3 < shown["ratio"] < 1.0
    assert on_the_page(path)["goodput"] == pytest.approx(shown["ratio"], abs=1e-9)
    assert in_metrics(path) == pytest.approx(shown["ratio"], abs=1e-9)
    assert simulate_command(["--from-journal", str(path), "--min-np", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["goodput"] == pytest.approx(shown["ratio"], abs=1e-9)


def test_the_goodput_of_a_simulated_job_is_that_of_its_journal(tmp_path, capsys):
    path = tmp_path / "journal.jsonl"
    predicted = simulated(path)
    shown = in_events(path, capsys)
    assert shown["ratio"] == pytest.approx(predicted.goodput, abs=0.003)
    assert shown["kept"] == predicted.kept
    assert shown["possible_s"] == pytest.approx(predicted.capacity, rel=0.01)


def test_the_page_counts_the_start_of_a_run_as_time_without_a_step(tmp_path):
    journal = JournalMaker().add("started", run="r").add("published", after=1, hosts={"a": 2}, departing=[])
    journal.resized("start", 2, after=20, hosts={"a": 2})
    journal.add("synced", step=0, size=2, rank=0, host="a").steps(83, every=1.0).add("finished", code=0, reason="done")
    now = on_the_page(journal.write(tmp_path / "journal.jsonl"))
    assert now["goodput"] == pytest.approx(83 / 103)
    assert now["downtime_s"] == pytest.approx(20)
    assert now["since_s"] == pytest.approx(103)


def test_the_summary_says_what_goodput_is_taken_from_and_nothing_without_steps():
    with DEMO.open() as lines:
        (run,) = runs(read(lines))
    assert "; goodput 53.1 % of what the listed hosts could have done in 347.6 s; " in summary(
        build_report(run.records)
    )
    assert "goodput" not in summary(build_report(JournalMaker().add("started").records))


def test_each_line_of_a_long_journal_counts_though_the_page_keeps_a_sample(tmp_path):
    journal = JournalMaker().add("started", run="r").add("published", hosts={"a": 2}, departing=[])
    journal.resized("start", 2, hosts={"a": 2}).steps(9_000, every=0.3).back(300).steps(1_000, every=0.3)
    path = journal.write(tmp_path / "journal.jsonl")
    assert on_the_page(path)["goodput"] == pytest.approx(accounted(journal.records).goodput().ratio, abs=1e-12)
    assert on_the_page(path)["steps_lost"] == 300
