"""Whatever stands in a file, ``events`` and the page show it or refuse it in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hvd_elastic_ext.cli import main as hvd_elastic
from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.journal import parse_line
from hvd_elastic_ext.io.job_folders import find_journal
from hvd_elastic_ext.report.command import main
from tests.support.journals import JournalMaker

ODD = [
    "1e999", "-Infinity", "NaN", "9" * 400, "-1", "0.5", "true", "null", '""', '"\\ud800\\u001b[2J\\n"', "[]", "[[]]",
    "{}", '[1e999,null,"a"]', '{"a":1e999}', '{"a":{"b":[1]}}', '{"a":"b","c":null}', "1e308",
    '"' + "x" * 5000 + '"', "[" * 40 + "]" * 40,
]  # fmt: skip
FIELDS = sorted(
    {
        "hosts", "added", "removed", "departing", "failed", "size", "rank", "step", "steps_lost", "reason", "cause",
        "host", "slot", "code", "values", "downtime_s", "until", "cooldown_s", "path", "bytes", "seconds", "without",
        "slots_before", "subject", "run", "job", "command", "output", "checkpoints", "autoscale", "leaving", "before",
        "observed", "number", "deadline", "for_s", "again", "waived", "lost_because", "host_blocked", "ranks",
        "waiting", "finished", "since_s", "median_s", "step_s", "drained", "root", "sent_bytes", "source", "replicas",
        "spare", "spares", "trains", "grown", "shrunk", "kept", "again_s", "since_asked_s", "slept_s", "pause_s",
        "needed", "pid", "rows", "rows_before",
    }
)  # fmt: skip


def odd_journal(value: str) -> str:
    """Return a journal in which each field of each event has this value, among lines that are right."""
    right = JournalMaker().add("started", run="r").resized("start", 2, hosts={"a": 2}, added=["a"]).steps(3)
    lines, mono = [*right.lines], 200.0
    for event in EVENTS:
        for names in (FIELDS, ["host"], ["values"], ["hosts"], ["size", "step"]):
            mono += 0.25
            fields = ",".join(f'"{name}":{value}' for name in names)
            lines.append(f'{{"t":1.0,"mono":{mono},"generation":0,"event":"{event}",{fields}}}')
    for name in ("t", "mono", "generation", "event"):
        own = {"t": "1", "mono": "300", "generation": "0", "event": '"stepped"', name: value}
        lines.append("{" + ",".join(f'"{key}":{text}' for key, text in own.items()) + "}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_no_value_of_a_field_is_an_error(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(odd_journal(value))
    assert main([str(path)]) == 0
    table = capsys.readouterr().out
    assert "\x1b" not in table
    assert main([str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert told["rows"]
    from hvd_elastic_ext.dashboard.export import export
    from hvd_elastic_ext.dashboard.jobs import job_of, summary

    assert export(job_of(path), tmp_path / "page.html")
    assert summary(job_of(path))["state"]


def test_numbers_that_json_does_not_have_are_read_as_none_and_lines_without_a_time_are_none() -> None:
    line = '{"t":1,"mono":2,"generation":0,"event":"stepped","values":{"loss":NaN,"x":[-Infinity,1e999]}}'
    record = parse_line(line)
    assert record is not None
    assert record.fields == {"values": {"loss": None, "x": [None, None]}}
    assert parse_line(line.replace('"t":1', '"t":1e999')) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("words", [("events", "--plot", "out.svg"), ("dashboard", "--export", "out.svg")])
@pytest.mark.parametrize("read", [False, True], ids=["nobody reads", "somebody reads"])
def test_nothing_is_written_into_a_pipe_in_the_place_of_a_file(
    words: tuple[str, ...],
    read: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = JournalMaker().add("started", run="r").resized("start", 2).steps(3).write(tmp_path / "journal.jsonl")
    os.mkfifo(tmp_path / "out.svg")
    reader = os.open(tmp_path / "out.svg", os.O_RDONLY | os.O_NONBLOCK) if read else -1
    assert hvd_elastic([*words, str(path)]) != 0
    said = capsys.readouterr().err
    assert (said.count("\n"), "cannot be written: it is a pipe" in said) == (1, True), said
    if read:
        assert os.read(reader, 100) == b""
        os.close(reader)


def test_a_pipe_in_the_place_of_another_jobs_journal_hides_no_job(tmp_path: Path) -> None:
    good, evil = tmp_path / "good", tmp_path / "evil"
    good.mkdir()
    JournalMaker().add("started", run="r").write(good / "journal.jsonl")
    evil.mkdir()
    os.mkfifo(evil / "journal.jsonl")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "journal.jsonl").symlink_to("nowhere")
    os.utime(good / "journal.jsonl", (1, 1))
    assert find_journal(None, tmp_path) == good / "journal.jsonl"


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        f'{{"recording":4,"saved":{DEEP}',
        '{"recording":4}',
        '{"recording":1e999}',
        '{"recording":4,"saved":[],"options":5,"mono":"x","wall":null,"helper_number":{},"expects":1}',
        '{"recording":4,"saved":{},"options":{},"mono":{"infinity":1},"wall":1,"helper_number":1e999,"expects":[]}',
        '{"number":1,"mono":1,"event":{"kind":"Look"},"done":[],"again_at":null,"error":null}',
        '{"number":"1","mono":"x","event":[],"done":5,"again_at":{},"error":[]}',
    ],
    ids=range(8),
)
def test_what_is_no_recording_is_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording"
    path.write_text(f"{text}\n")
    assert hvd_elastic(["events", "--replay", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "of a recording" in said or "before the start of its launcher" in said
