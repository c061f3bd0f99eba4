"""The journal survives full disks, crashes in the middle of a line, and other writers."""

import io
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.journal import Journal, parse_line, read
from tests.support.clock import ManualClock

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(["reason", "host", "values", "size", "added"])
entries = st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0), st.dictionaries(field_names, plain, max_size=3))


class FullDisk(io.StringIO):
    """Takes ``room`` characters, then part of a line and an error, until ``room`` is raised."""

    def __init__(self, room=0):
        super().__init__()
        self.room = room

    def write(self, text):
        left = self.room - len(self.getvalue())
        super().write(text[: max(left, 0)])
        if left < len(text):
            raise OSError(28, "No space left on device")
        return len(text)


def written(entries, sink):
    journal = Journal(sink, ManualClock())
    for event, generation, fields in entries:
        journal.record(event, generation=generation, **fields)
    return journal


@given(st.lists(entries, max_size=5))
def test_what_was_recorded_is_read_back(entries):
    sink = io.StringIO()
    written(entries, sink)
    records = list(read(sink.getvalue().splitlines(keepends=True)))
    assert [(r.event, r.generation, dict(r.fields)) for r in records] == entries
    assert all((r.t, r.mono) == (1_000_000.0, 100.0) for r in records)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_a_last_line_cut_anywhere_costs_at_most_itself(entries, data):
    sink = io.StringIO()
    written(entries, sink)
    text = sink.getvalue()
    last = len(text[:-1].rpartition("\n")[0])
    cut = data.draw(st.integers(last, len(text) - 2))
    records = list(read(text[:cut].splitlines()))
    assert [r.event for r in records] == [event for event, _, _ in entries[:-1]]


@given(st.text(max_size=50) | plain.map(json.dumps))
def test_foreign_lines_are_passed_over(line):
    good = '{"t":1,"mono":2,"generation":3,"event":"finished"}'
    assert [r.event for r in read([line, good])][-1] == "finished"


@pytest.mark.parametrize(
    "line",
    [
        '{"t":1' + "0" * 400 + ',"mono":2,"generation":3,"event":"finished"}',
        '{"t":1,"mono":2,"generation":Infinity,"event":"finished"}',
        '{"t":1,"mono":2,"generation":null,"event":"finished"}',
        '{"mono":2,"generation":3,"event":"finished"}',
        "[" * 100_000,
        "[1,2]",
        "7",
        "",
    ],
    ids=lambda line: line[:30],
)
def test_lines_with_impossible_values_are_no_records(line):
    assert parse_line(line) is None


def test_events_and_keys_of_a_later_release_are_kept_for_whoever_knows_them():
    record = parse_line('{"t":1,"mono":2,"generation":3,"event":"teleported","to":"mars"}')
    assert (record.event, record.get("to"), record.get("from", "?")) == ("teleported", "mars", "?")


@given(st.integers(0, 400))
def test_a_full_disk_loses_lines_and_says_how_many_once_there_is_room(room):
    sink = FullDisk(room)
    journal = written([("published", n, {}) for n in range(8)], sink)
    lost = journal.dropped
    sink.room = 10_000
    journal.record("finished", generation=9)
    journal.record("finished", generation=10)
    records = list(read(sink.getvalue().splitlines()))
    kept = [r.generation for r in records[:-2]]
    assert kept == list(range(len(kept)))
    assert lost - 1 <= 8 - len(kept) <= lost  # a line that lacks its newline only is counted, and can be read
    assert [r.generation for r in records[-2:]] == [9, 10]
    assert (records[-2].get("dropped", 0), records[-1].get("dropped")) == (lost, None)
    assert journal.dropped == 0


def test_numbers_that_json_does_not_know_become_null():
    sink = io.StringIO()
    values = {"loss": math.nan, "all": [1.0, math.inf], "deep": {"x": -math.inf}, "kept": 1.5}
    written([("stepped", 1, {"values": values})], sink)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    entry = json.loads(sink.getvalue(), parse_constant=refuse)
    assert entry["values"] == {"loss": None, "all": [1.0, None], "deep": {"x": None}, "kept": 1.5}


def test_values_that_are_no_json_are_written_as_text(tmp_path):
    sink = io.StringIO()
    written([("sealed", 1, {"path": tmp_path})], sink)
    assert json.loads(sink.getvalue())["path"] == str(tmp_path)


def test_an_event_nobody_declared_is_an_error_of_ours():
    with pytest.raises(ValueError, match="unknown journal event 'exploded'"):
        Journal(io.StringIO(), ManualClock()).record("exploded", generation=1)


@pytest.mark.parametrize("name", ["t", "mono", "dropped"])
def test_a_field_that_every_line_has_of_its_own_is_an_error_of_ours(name):
    with pytest.raises(ValueError, match=f"'{name}' is every line's own"):
        Journal(io.StringIO(), ManualClock()).record("finished", generation=1, **{name: 0})


WRITER = """
import sys
from pathlib import Path
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.io.append_file import AppendFile

journal = Journal(AppendFile.existing(Path(sys.argv[1])), SystemClock())
for n in range(200):
    journal.record("stepped", generation=n, host=sys.argv[2], values={"padding": "x" * (n * 100)})
"""


def test_lines_of_several_processes_do_not_mix(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.touch()
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, name]) for name in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = path.read_text().splitlines()
    records = list(read(lines))
    assert len(records) == len(lines) == 600
    for name in ("a", "b", "c"):
        assert [r.generation for r in records if r.get("host") == name] == list(range(200))


def test_what_is_written_later_keeps_the_time_at_which_it_happened():
    sink, clock = io.StringIO(), ManualClock()
    happened, wall = clock.mono(), clock.wall()
    clock.advance(2.5)
    Journal(sink, clock).record("resized", generation=1, at_mono=happened)
    (record,) = read(sink.getvalue().splitlines())
    assert (record.mono, record.t) == (happened, wall)
