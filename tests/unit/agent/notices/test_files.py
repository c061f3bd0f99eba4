"""Files by which others tell an agent that its host is about to go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.notices.files import MAX_BYTES, STALE_S, Notice, NoticeFiles, read, soonest

NOW = 1000.0


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("", None),
        (" \n", None),
        ("spot interruption\n", Notice("spot interruption")),
        ("drained\nby Ops", Notice("drained")),
        ('{"reason": "drained", "deadline": 1030}', Notice("drained", 1030.0)),
        ('{"deadline": 1030.5}', Notice("no reason given", 1030.5)),
        ("{}", Notice("no reason given")),
        ("tab\tand \x1b[31mred", Notice("tab and  [31mred")),
        ("x" * 1000, Notice("x" * 200)),
    ],
)
def test_a_notice_is_a_line_or_an_object(text: str, notice: Notice | None) -> None:
    assert read(text) == notice


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"deadline": "soon"}',
        '{"deadline": true}',
        '{"deadline": NaN}',
        '{"deadline": 1' + "0" * 400 + "}",
        '{"reason": 3}',
        "{" * 4000,
    ],
)
def test_what_is_no_notice_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError, RecursionError)):
        read(text)


def test_of_several_notices_the_soonest_counts_and_those_long_over_do_not() -> None:
    late, soon, some_time = Notice("late", NOW + 60), Notice("soon", NOW + 5), Notice("some time")
    assert soonest([some_time, late, soon], NOW) == soon
    assert soonest([some_time], NOW) == some_time
    assert soonest([Notice("over", NOW - STALE_S + 1)], NOW) is not None
    assert soonest([Notice("long over", NOW - STALE_S)], NOW) is None
    assert soonest([], NOW) is None


class Looking:
    """Notice files in a folder, and what was complained of."""

    def __init__(self, folder: Path) -> None:
        self.own, self.named = folder / "own", folder / "named"
        self.complaints: list[str] = []
        self.files = NoticeFiles([str(self.own)], [str(self.named)], warn=self.complaints.append)

    def look(self, wall: float = NOW) -> Notice | None:
        return self.files.look(wall)


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path)


def test_a_notice_holds_from_when_its_file_is_there_until_it_is_gone(looking: Looking) -> None:
    assert looking.look() is None
    looking.named.write_text("drained")
    assert looking.look() == looking.look() == Notice("drained")
    looking.named.unlink()
    assert looking.look() is None
    assert not looking.complaints


def test_a_file_that_is_emptied_counts_only_when_it_has_stood_so_for_a_look(looking: Looking) -> None:
    looking.named.write_text("drained")
    looking.look()
    looking.named.write_text("")
    assert looking.look() == Notice("drained")
    assert looking.look() is None


def test_a_file_that_is_emptied_to_be_written_anew_is_never_taken_for_no_notice(looking: Looking) -> None:
    looking.named.write_text("drained")
    looking.look()
    looking.named.write_text("")
    assert looking.look() == Notice("drained")
    looking.named.write_text("evicted")
    assert looking.look() == Notice("evicted")
    looking.named.write_text("")
    assert looking.look() == Notice("evicted")


@pytest.mark.parametrize("spoil", ["garbage", "huge", "folder", "fifo"])
def test_what_cannot_be_taken_is_said_once_and_changes_nothing(looking: Looking, spoil: str) -> None:
    looking.named.write_text("drained")
    looking.look()
    looking.named.unlink()
    {
        "garbage": lambda: looking.named.write_text('{"reason": '),
        "huge": lambda: looking.named.write_text("x" * (MAX_BYTES + 1)),
        "folder": lambda: looking.named.mkdir(),
        "fifo": lambda: os.mkfifo(looking.named),
    }[spoil]()
    assert looking.look() == looking.look() == Notice("drained")
    (complaint,) = looking.complaints
    assert str(looking.named) in complaint


def test_what_can_be_read_at_last_is_read(looking: Looking) -> None:
    looking.own.mkdir()
    assert looking.look() is None
    looking.own.rmdir()
    looking.own.write_text("drained")
    assert looking.look() == Notice("drained")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_a_file_that_is_given_to_the_right_user_is_read_though_nothing_else_has_changed(looking: Looking) -> None:
    looking.own.write_text("drained")
    os.chown(looking.own, 65534, 65534)
    assert looking.look() is None
    os.chown(looking.own, 0, 0)
    assert looking.look() == Notice("drained")


def test_where_a_file_may_be_cannot_be_seen_what_it_said_before_holds(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking.named.write_text("drained")
    looking.look()
    looking.files.look(NOW)

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    assert looking.look() == Notice("drained")
    monkeypatch.undo()
    assert looking.complaints


def test_the_agents_own_file_is_made_again_when_it_was_taken_away(looking: Looking) -> None:
    for _ in range(2):
        looking.own.write_text("drained")
        assert looking.look() == Notice("drained")
        looking.own.unlink()
        assert looking.look() is None
        assert looking.own.read_text() == ""
    assert not looking.named.exists()


def test_the_agents_own_file_is_made_again_when_it_was_taken_away_while_it_was_made(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.open

    def taken_away(path: str, flags: int, *mode: int) -> int:
        descriptor = make(path, flags, *mode)
        if flags & os.O_CREAT and looking.own.exists():
            looking.own.unlink()
            monkeypatch.undo()
        return descriptor

    looking.own.write_text("")
    looking.look()
    looking.own.unlink()
    monkeypatch.setattr(os, "open", taken_away)
    assert looking.look() is None
    assert not looking.own.exists()
    assert looking.look() is None
    assert looking.own.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_nobody_else_gives_notice_in_the_agents_own_folder_or_in_the_file_that_the_job_names(looking: Looking) -> None:
    for path in (looking.own, looking.named):
        path.write_text(path.name)
        os.chown(path, 65534, 65534)
    assert looking.look() is None
    assert looking.complaints == [
        f"notice file {path}: it belongs to user 65534, neither root nor this one, and is ignored; the last notice "
        "stays valid"
        for path in (looking.own, looking.named)
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_nobody_else_gives_notice_by_a_link_to_a_file_of_roots(looking: Looking, tmp_path: Path) -> None:
    (tmp_path / "roots").write_text("anything")
    looking.named.symlink_to(tmp_path / "roots")
    assert looking.look() == Notice("anything")
    looking.named.unlink()
    assert looking.look() is None
    (tmp_path / "others").symlink_to(tmp_path / "roots")
    os.lchown(tmp_path / "others", 65534, 65534)
    (tmp_path / "others").rename(looking.named)
    assert looking.look() is None
    (complaint,) = looking.complaints
    assert "it belongs to user 65534" in complaint


def test_a_notice_that_was_left_behind_goes_stale_by_itself(looking: Looking) -> None:
    looking.own.write_text('{"reason": "its pod is about to end", "deadline": 1000}')
    assert looking.look(NOW) is not None
    assert looking.look(NOW + STALE_S) is None
