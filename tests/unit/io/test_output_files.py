"""Which process wrote which part of a file of output."""

from __future__ import annotations

from pathlib import Path

from hvd_elastic_ext.io.output_files import EVERY_S, Indexer, Mark, file_of, parse_mark

FILE = file_of("0", "stderr")


def test_a_part_begins_with_another_process_or_after_a_time(tmp_path: Path) -> None:
    now = 100.0
    indexer = Indexer(tmp_path, lambda: now)
    marks = []
    (tmp_path / FILE).parent.mkdir()
    for later, host, text in ((0, "a", "one\n"), (1, "a", "two\n"), (0, "b", "drei ü\n"), (EVERY_S, "b", "four\n")):
        now += later
        line = indexer.line(FILE, host=host, slot=0, generation=1)
        with (tmp_path / FILE).open("a") as file:
            file.write(text)
        marks += [parse_mark(line)] if line else []
    assert marks == [
        Mark("rank.0/stderr", 0, 100.0, 1, "a", 0),
        Mark("rank.0/stderr", 8, 101.0, 1, "b", 0),
        Mark("rank.0/stderr", 16, 101.0 + EVERY_S, 1, "b", 0),
    ]


def test_a_file_of_an_earlier_launcher_goes_on_where_it_ends(tmp_path: Path) -> None:
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text("before\n")
    line = Indexer(tmp_path, lambda: 1.0).line(FILE, host="a", slot=0, generation=2)
    assert line is not None
    mark = parse_mark(line)
    assert mark is not None
    assert mark.at == 7


def test_what_is_no_line_of_an_index_is_none() -> None:
    for line in ("", "x", "[]", "{}", '{"file":"a","at":"x","t":1,"generation":1,"host":"a","slot":0}'):
        assert parse_mark(line) is None
