"""The output of ranks: parts, search, and who wrote what."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard.logs import PART, Logs
from hvd_elastic_ext.io.output_files import INDEX, Indexer, file_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank 0 was on host a in world 1, on host b in world 2; rank 1 wrote nothing else than an error."""
    now = 1000.0
    indexer = Indexer(tmp_path, lambda: now)
    for t, who, host, generation, text in (
        (1000.0, "0", "a", 1, "step 1\n"), (1001.0, "0", "a", 1, "step 2 ä\n"), (1020.0, "0", "b", 2, "step 3\n"),
        (1021.0, "1", "b", 2, "Traceback: BOOM\n"),
    ):  # fmt: skip
        now, file = t, file_of(who, "stderr")
        (tmp_path / file).parent.mkdir(exist_ok=True)
        mark = indexer.line(file, host=host, slot=0, generation=generation)
        with (tmp_path / INDEX).open("a") as index:
            index.write(mark or "")
        with (tmp_path / file).open("a") as output:
            output.write(text)
    return tmp_path


def test_files_are_listed_by_rank_with_the_host_that_wrote_last(folder: Path) -> None:
    (folder / "rank.10").mkdir()
    (folder / "rank.10" / "stdout").write_text("")
    found = Logs(folder).files()
    assert [(each["file"], each["host"]) for each in found] == [
        ("rank.0/stderr", "b"), ("rank.1/stderr", "b"), ("rank.10/stdout", None)
    ]  # fmt: skip


def test_a_file_has_a_part_for_each_process_that_has_been_the_rank(folder: Path) -> None:
    parts = Logs(folder).sections("rank.0/stderr")
    assert [(part["host"], part["generation"], part["start"], part["end"]) for part in parts] == [
        ("a", 1, 0, 17), ("b", 2, 17, None)
    ]  # fmt: skip


def test_a_part_is_read_from_its_place_and_the_end_without_one(folder: Path) -> None:
    logs = Logs(folder)
    assert logs.read("rank.0/stderr", length=7).text == "step 3\n"
    assert logs.read("rank.0/stderr", start=17) == ("step 3\n", 17, 24, 24, "rank.0/stderr")
    assert logs.read("rank.0/stderr", end=17).text == "step 1\nstep 2 ä\n"


def test_what_was_written_around_a_time_is_found(folder: Path) -> None:
    assert Logs(folder).around("rank.0/stderr", 1040.0).text == "step 3\n"
    assert Logs(folder).around("rank.0/stderr", 1020.0).text.startswith("step 1\n")


def test_a_process_that_is_named_by_its_slot_is_found_in_the_file_of_its_rank(folder: Path) -> None:
    (folder / "rank.b[0]").mkdir()
    (folder / "rank.b[0]" / "stdout").write_text("booting\n")
    found = Logs(folder).around("rank.b[0]/stderr", 1022.0)
    assert (found.file, found.text) == ("rank.1/stderr", "Traceback: BOOM\n")
    assert Logs(folder).around("rank.a[0]/stderr", 1002.0).file == "rank.0/stderr"
    assert Logs(folder).around("rank.c[0]/stderr", 1022.0).text == ""


def test_what_is_shown_around_a_time_ends_there_and_is_the_newest_if_there_is_much(folder: Path) -> None:
    assert "step 3" not in Logs(folder).around("rank.0/stderr", 1001.0).text
    with (folder / "rank.1/stderr").open("a") as file:
        file.write("x" * PART + "\nthe end\n")
    assert Logs(folder).around("rank.1/stderr", 1021.0).text.endswith("\nthe end\n")


def test_a_file_is_found_by_each_host_that_wrote_to_it(folder: Path) -> None:
    assert Logs(folder).files()[0]["hosts"] == ["b", "a"]


def test_of_a_process_that_wrote_no_error_the_output_is_shown(folder: Path) -> None:
    assert Logs(folder).around("rank.0/stdout", 1040.0).text == "step 3\n"
    assert Logs(folder).around("rank.7/stderr", 1040.0).text == ""


def test_a_search_finds_lines_of_all_ranks_in_any_case(folder: Path) -> None:
    found = Logs(folder).search("boom")
    assert [(hit["file"], hit["text"]) for hit in found["hits"]] == [("rank.1/stderr", "Traceback: BOOM")]
    assert found["whole"]


def test_a_search_may_be_for_one_host_or_one_world(folder: Path) -> None:
    logs = Logs(folder)
    assert [hit["text"] for hit in logs.search("step", host="a")["hits"]] == ["step 1", "step 2 ä"]
    assert [hit["text"] for hit in logs.search("step", generation=2)["hits"]] == ["step 3"]


def test_a_hit_says_where_its_line_begins(folder: Path) -> None:
    (hit,) = Logs(folder).search("step 3")["hits"]
    assert Logs(folder).read("rank.0/stderr", start=hit["at"]).text == "step 3\n"


@pytest.mark.parametrize(
    "name", ["../secret", "rank.0/../../secret", "/etc/passwd", "index.jsonl", "rank.0/stdin", "", "rank.a/b/stderr"]
)
def test_no_other_file_is_read(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("x")
    with pytest.raises(UsageError):
        Logs(folder).read(name)


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path.parent / "a-secret"
    secret.write_text("x")
    (folder / "rank.1" / "stdout").symlink_to(secret)
    with pytest.raises(UsageError):
        Logs(folder).read("rank.1/stdout")


def test_a_folder_that_is_missing_holds_nothing(tmp_path: Path) -> None:
    assert Logs(tmp_path / "none").files() == []


def test_a_folder_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path.parent / "others"
    other.mkdir(exist_ok=True)
    (other / "stdout").write_text("x")
    (folder / "rank.5").symlink_to(other)
    with pytest.raises(UsageError):
        Logs(folder).read("rank.5/stdout")


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "rank.1" / "stdout")
    with pytest.raises(UsageError, match="not a regular file"):
        Logs(folder).read("rank.1/stdout")
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    assert Logs(folder).sections("rank.0/stderr") == []


@pytest.mark.parametrize("name", ["../secret/stdout", "\0/stdout", "/etc/passwd"])
def test_a_time_in_another_file_is_not_looked_for(folder: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Logs(folder).around(name, 1000.0)


@pytest.mark.parametrize("at", [-1, 1 << 63])
def test_a_line_of_the_index_with_a_place_in_no_file_is_left_out(folder: Path, at: int) -> None:
    mark = {"file": "rank.1/stderr", "at": at, "t": 1.0, "generation": 9, "host": "z", "slot": 0}
    with (folder / INDEX).open("a") as file:
        file.write(json.dumps(mark) + "\n")
    assert Logs(folder).search("boom", host="z") == {"hits": [], "whole": True}
