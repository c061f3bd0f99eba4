"""A recording of the launcher's input is enough for the driver to make the same decisions again."""

from __future__ import annotations

import io
import json
import math
import random
import re
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.cli import replay
from hvd_elastic_ext.launcher.driver import driver as driver_module
from hvd_elastic_ext.launcher.driver import events, options, plan
from hvd_elastic_ext.launcher.driver.actions import Record
from hvd_elastic_ext.launcher.driver.driver import Driver
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.options import JobOptions
from hvd_elastic_ext.launcher.driver.recording import Recorder, from_json, parsed, text_of, to_json
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.folder.handover import start_of, state_at_start
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Subject
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.model.history import History, drawn, script
from tests.unit.launcher.model.play import play
from tests.unit.launcher.simulated_cluster import Cluster

NOW = 1000.0
OPTIONS = JobOptions(
    WorldLimits(2, 1, 8, (2, 4), 0.5),
    cooldown_s=(2.0, 8.0),
    heartbeat_timeout_s=3.0,
    standby_timeout_s=15.0,
    wait_lines_s=60.0,
    orphan_grace_s=8.0,
    commit_wait_s=6.0,
    elastic_timeout_s=120.0,
    reset_limit=3,
    failure_budget=4,
    below_min="sleep",
    progress_timeout_s=None,
    restart_stalled=False,
    drain_stragglers=True,
    durability=Durability("/store", Cadence(seconds=5.0), mark="this"),
    commit_every=Cadence(steps=3),
    sleep_after_s=1.0,
    misplaced="--adopt is",
)
CHAOS = script("""
0 hosts a:2 b:1
6 kill a
9 hosts a:2 b:1 c:1
14 cut b
22 back b
25 launcher 0.5
40 block a
44 clear a
46 notice b 20
""")


def recorded(history: History, path: Path) -> None:
    lines = io.StringIO()
    assert play(history, recorder=Recorder(lines)) is None
    path.write_text(lines.getvalue())


@pytest.mark.parametrize("history", [CHAOS, *(drawn(random.Random(seed).randrange) for seed in range(4))])
def test_recorded_events_lead_to_the_same_decisions(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(history, tmp_path / "events")
    assert cli.main(["events", "--replay", str(tmp_path / "events"), "--quiet"]) == 0
    assert "the same decisions" in capsys.readouterr().out


def test_a_decision_that_is_another_one_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events"
    recorded(CHAOS, path)
    lines = path.read_text().splitlines()
    number = next(index for index, line in enumerate(lines) if "journal resized" in line)
    path.write_text("\n".join([*lines[:number], lines[number].replace("journal resized", "journal slept", 1), ""]))
    assert cli.main(["events", "--replay", str(path), "--quiet"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{path}:{number + 1}: ")
    assert "led to 'journal slept" in out


def test_the_state_is_printed_with_everything_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(CHAOS, tmp_path / "events")
    assert cli.main(["events", "--replay", str(tmp_path / "events"), "--quiet", "--state"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("JobState(options=")
    assert " object at 0x" not in printed


def replayed(path: Path) -> JobState:
    """Return the state after the last recorded event."""
    job: JobState | None = None
    for line in map(json.loads, path.read_text().splitlines()):
        if "recording" in line:
            job = state_at_start(line)
            continue
        assert job is not None
        job.now = line["mono"]
        reduce(job, from_json(line["event"], job.now))
        if line["event"]["kind"] == "Look":
            plan.look(job)
    assert job is not None
    return job


def test_states_after_the_same_events_are_equal_and_after_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "events"
    recorded(CHAOS, path)
    whole = replayed(path)
    assert whole == replayed(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-3]))
    assert whole != replayed(path)


@pytest.mark.parametrize("why", [JobFailed("no host is left"), Interrupted(15, "SIGTERM")])
def test_states_of_jobs_that_end_for_the_same_reason_are_equal(why: JobFailed) -> None:
    def ended(event: events.Event) -> JobState:
        job = Cluster(OPTIONS).driver.job
        job.helper_number = 0  # it is random, so that no helper has the number of another launcher's
        reduce(job, event)
        return job

    first = ended(events.End(why))
    assert first == ended(from_json(to_json(events.End(why), NOW), NOW))
    assert first != ended(events.End(JobFailed("another reason")))


class Breaks(Exception):
    """A defect of the driver."""


def test_the_event_that_shows_a_defect_is_recorded_with_its_error_and_shows_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise Breaks("no such seat")

    path, lines = tmp_path / "events", io.StringIO()
    monkeypatch.setattr(driver_module, "reduce", broken)
    cluster = Cluster(OPTIONS)
    driver = Driver(
        cluster.driver.job, cluster.launcher, journal=Journal(io.StringIO(), cluster.clock), clock=cluster.clock,
        recorder=(recorder := Recorder(lines)),
    )  # fmt: skip
    recorder.job_started(start_of(Saved(1), driver.job, wall=0.0, expects=None))
    with pytest.raises(Breaks):
        driver.tell(events.LauncherPaused(1.0))
    path.write_text(lines.getvalue())
    monkeypatch.setattr(replay, "reduce", broken)
    assert cli.main(["events", "--replay", str(path), "--quiet"]) == 0
    assert "ends with Breaks: no such seat, as it did" in capsys.readouterr().out
    monkeypatch.undo()
    assert cli.main(["events", "--replay", str(path), "--quiet"]) == 1
    assert "ended with Breaks: no such seat, and now with no error" in capsys.readouterr().out


def test_missing_lines_of_a_recording_are_named_and_not_taken_for_a_defect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events"
    recorded(CHAOS, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:10], lines[10][:7] + "\n", *lines[12:]]))
    assert cli.main(["events", "--replay", str(path), "--quiet"]) == 2
    cut_off, missing = capsys.readouterr().err.splitlines()
    assert cut_off.endswith(f"{path}:11: the line is cut off; passed over")
    assert "events 10 to 11 are missing before this line" in missing
    assert "the 9 events before lead to the same decisions" in missing


def test_an_abbreviated_option_of_events_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["events", "--rep", "file"]) == 2
    assert "--replay?" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a recording, or an empty one"),
        ("1", "is not a recording"),
        ("1\n", ":1: is not a line of a recording; give"),
        ("{}\n", ":1: is not a line of a recording; give"),
        ("hello\n", ":1: is not a line of a recording"),
        ("[]\n", ":1: is not a line of a recording"),
        ('{"recording":99}\n', "version 99"),
        (
            '{"number":1,"mono":1,"event":{"kind":"Look"},"done":[],"again_at":null,"error":null}\n',
            "before the start of its launcher",
        ),
        ('{"recording":3,"mono":1}\n', "version 3, and this program reads version 4"),
        ('{"recording":4,"mono":1}\n', ":1: is not a line of a recording"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_one_line(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events"
    path.write_text(content)
    assert cli.main(["events", "--replay", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    "event",
    [
        events.HostsChanged(hosts=HostSet((Host("a", 2, "u", "n", "l"),)), departing={"b": ("drained", 7.5)}),
        events.HostsChanged(hosts=HostSet(), refused="hosts: does not exist"),
        events.AgentJoined("a", {"facts": {"cpus": 2}}),
        events.AgentUnfit("a", "no torch"),
        events.AgentLost("a", "reset"),
        events.LaunchEnded("a", 255, "no route"),
        events.AgentEnded("a", 0, ""),
        events.News("a", {"event": "beats", "slots": {"0": {"life": 1}}}),
        events.LauncherPaused(2.5),
        events.PeersChanged(None),
        events.Expected((Host("a", 1),), 12.5),
        events.HealthChanged(
            HealthLedger().block(Subject("host", "a"), NOW + 60.0, "bad fan"), "blocked", {"host": "a"}
        ),
        events.WorldNotBegun(3, "no mpirun"),
        events.Look(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_every_event_is_read_as_it_was_written(event: events.Event) -> None:
    assert from_json(parsed(text_of(to_json(event, NOW))), NOW) == event


def test_a_recording_is_json_also_where_a_time_is_infinite() -> None:
    lines = io.StringIO()
    event = events.HostsChanged(HostSet(), departing={"a": ("drained", math.inf), "b": ("drained", -math.inf)})
    Recorder(lines).happened(NOW, event, [Record("advised", 1, {"by": math.inf})], math.inf)
    line = lines.getvalue()
    assert not {"Infinity", "NaN"} & set(re.findall(r"\w+", line))
    read = parsed(line)
    assert from_json(read["event"], NOW) == event
    assert read["again_at"] == math.inf


@pytest.mark.parametrize("why", [JobFailed("no hosts"), Interrupted(15, "stopped")])
def test_why_a_job_was_ended_is_read_as_it_was_written(why: JobFailed) -> None:
    read = from_json(to_json(events.End(why), NOW), NOW)
    assert isinstance(read, events.End)
    assert (type(read.why), str(read.why), read.why.exit_code) == (type(why), str(why), why.exit_code)


def test_options_are_read_as_they_were_written() -> None:
    assert options.from_json(json.loads(json.dumps(options.to_json(OPTIONS)))) == OPTIONS


def test_what_a_process_prints_is_not_recorded() -> None:
    printed = events.News("a", {"event": "output", "slot": 0, "text": "secret"})
    assert "secret" not in json.dumps(to_json(printed, NOW))
