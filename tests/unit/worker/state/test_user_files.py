"""Files of the user's own in place of a commit: into memory, onto storage, back into memory, and out again."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_elastic_ext.checkpoint.conversion import export
from hvd_elastic_ext.checkpoint.format.user_files import FILES, is_inside
from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.commit_record import KEPT_AT
from hvd_elastic_ext.core.errors import Permanent, StateError, UsageError
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, Contents
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.state import user_files
from hvd_elastic_ext.worker.state.slot_memory import HeldCommit
from hvd_elastic_ext.worker.state.user_files import Checkpoint
from tests.unit.worker.made_commits import contents, identity, memory_files, seen
from tests.unit.worker.state.test_held_commit import Said, commit, lies_on, release

TREE = {"weights.bin": os.urandom(100_000), "deep/er/empty": b"", "zażółć ę.txt": b"text"}
LOCAL = trees.encode_value(write({"program": "x", "rng": None}, []))


def nothing(_: Path) -> None: ...


def writes(tree: dict[str, bytes]) -> Checkpoint:
    def save(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        for name, data in tree.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return Checkpoint(save, nothing)


class Reads(Checkpoint):
    """Remembers what was in the folder, and which it was."""

    def __init__(self) -> None:
        super().__init__(nothing, self.read)

    def read(self, folder: Path) -> None:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        found.append({str(path.relative_to(folder)): path.read_bytes() for path in paths})
        folders.append(folder)


found: list[dict[str, bytes]] = []
folders: list[Path] = []


@pytest.fixture(autouse=True)
def _nothing_found() -> None:
    found.clear()
    folders.clear()


def kept(memory: list[int], tree: dict[str, bytes], *, before: int = 1) -> int:
    """A process commits, and keeps files in place of the last commit; on which side."""
    buffer = CommitBuffer(open_sides(memory))
    commit(buffer, *range(1, before + 1))
    with user_files.written(writes(tree), LOCAL) as files:
        return buffer.keep_instead(files, identity(before), step=before)


def stored(place: Path, memory: list[int], tree: dict[str, bytes]) -> None:
    """Two ranks of one host: the files of the first, and of the other its own state alone."""
    side = kept(memory, tree)
    with memory_files(3) as others:
        buffer = CommitBuffer(open_sides(others))
        buffer.take(Contents(*_plain(1), local=LOCAL), identity(1), step=1)
        whole = {"place": str(place), "commit": list(identity(1)), "parts": 1}
        shares = {"0": [0, 0, side], "1": [None, 1, buffer.keep()]}
        request = {"do": "write", **whole, "shares": shares, "sides": {"0": memory, "1": list(others)}}
        written = agent_requests.answered(request)
    assert "failed" not in written
    sealed = agent_requests.answered({"do": "seal", **whole, "world": 2, "written": [written], "keep": 3})
    assert "failed" not in sealed


def _plain(number: int) -> tuple[bytes, list[torch.Tensor], list[bool]]:
    made = contents(number)
    return made.tree, list(made.tensors), list(made.firm)


def loaded(place: Path, ranks: dict[str, int], sides: dict[str, list[int]]) -> dict[str, Any]:
    return agent_requests.answered({"do": "load", "place": str(place), "ranks": ranks, "sides": sides})


@pytest.mark.parametrize("ranks", [1, 2])
def test_files_come_back_to_every_rank_as_they_were_with_its_own_state(
    tmp_path: Path, memory: list[int], ranks: int
) -> None:
    stored(tmp_path, memory, TREE)
    for rank in range(ranks):
        with memory_files(3) as fresh:
            answer = loaded(tmp_path, {"5": rank}, {"5": list(fresh)})
            assert (answer["slots"], answer["step"]) == ([5], 1)
            last = CommitBuffer(open_sides(fresh)).last()
            assert user_files.are_in(last)
            assert rng.read_rank_local(last) == rng.RankLocal("x", None)
            user_files.take_back(Reads(), last)
    assert found == ranks * [TREE]
    assert not any(folder.exists() for folder in folders)


def test_a_state_is_not_taken_for_files(memory: list[int]) -> None:
    buffer = CommitBuffer(open_sides(memory))
    tree = trees.encode({trees.VALUES: write({"epoch": 3}, [])})
    buffer.take(Contents(tree, [], []), identity(1), step=1)
    last = buffer.last()
    assert not user_files.are_in(last)


def test_they_lie_beside_the_last_commit_until_they_are_let_go_and_no_process_takes_them_for_it(
    memory: list[int],
) -> None:
    side = kept(memory, TREE, before=2)
    before = lies_on(memory[side])
    assert before is not None
    buffer = CommitBuffer(open_sides(memory))
    last = seen(buffer)
    assert last.tensors == seen_of(2)
    for number in range(3, 12):
        commit(buffer, number)
        assert lies_on(memory[side]) == before
    release(memory)
    commit(buffer, 12, 13, 14)
    assert lies_on(memory[side]) != before


def seen_of(number: int) -> tuple[bytes, ...]:
    with memory_files(2) as descriptors:
        buffer = CommitBuffer(open_sides(descriptors))
        commit(buffer, number)
        whole = seen(buffer)
        return whole.tensors


def test_random_generators_are_after_save_what_they_were_before() -> None:
    def draws(folder: Path) -> None:
        torch.rand(7)
        (folder / "file").write_bytes(b"abc")

    before = torch.get_rng_state()
    with user_files.written(Checkpoint(draws, nothing), b""):
        assert bool((torch.get_rng_state() == before).all())


def test_no_small_file_is_mapped_and_no_large_one_any_more_when_the_folder_goes() -> None:
    where: list[str] = []

    def save(folder: Path) -> None:
        where.append(str(folder))
        (folder / "large").write_bytes(bytes(user_files.MAPPED))
        for number in range(9):
            (folder / f"small {number}").write_bytes(b"abc")

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(where[0])

    with user_files.written(Checkpoint(save, nothing), b"") as made:
        assert len(made.tensors) == 10
        assert mapped() == 1
    assert mapped() == 0
    assert not Path(where[0]).exists()


@pytest.mark.parametrize(("left", "stays"), [("dead", False), ("held", True), ("new", True)])
def test_the_folder_of_a_process_that_was_killed_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, stays: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"{user_files.PREFIX}abc"
    folder.mkdir()
    (folder / "large").write_bytes(b"abc")
    if left != "new":
        long_ago = time.time() - 2 * user_files.LEFT_S
        os.utime(folder, (long_ago, long_ago))
    held = os.open(folder, os.O_RDONLY)
    if left == "held":
        fcntl.flock(held, fcntl.LOCK_EX)
    with user_files.written(writes(TREE), b""):
        assert folder.exists() == stays
    os.close(held)
    assert folder.exists() == stays


@pytest.mark.parametrize(
    ("makes", "why"),
    [
        (lambda folder: (folder / "odd").symlink_to("/etc/passwd"), "odd, which is not a file"),
        (lambda folder: (folder / "odd").symlink_to("nowhere"), "odd, which is not a file"),
        (lambda folder: os.mkfifo(folder / "odd"), "odd, which is not a file"),
        (nothing, "no file into its folder"),
        (
            lambda folder: Path(os.fsdecode(bytes(folder) + b"/odd\xff")).write_bytes(b"abc"),
            r"'odd\\udcff', a name that is not UTF-8",
        ),
    ],
    ids=["link", "dangling link", "fifo", "nothing", "name"],
)
def test_what_is_not_a_file_is_refused_by_its_name(makes: Any, why: str) -> None:
    with pytest.raises(StateError, match=why), user_files.written(Checkpoint(makes, nothing), b""):
        pass


def with_files(memory: list[int], content: Any) -> CommitBuffer:
    """Memory of a commit that says that ``content`` is files by name."""
    tensors: list[torch.Tensor] = []
    tree = trees.encode({FILES: write(content, tensors)})
    buffer = CommitBuffer(open_sides(memory))
    buffer.take(Contents(tree, tensors, [True] * len(tensors), LOCAL), identity(1), step=1)
    return buffer


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/../../b", "", ".", "a//b", "./a", "a\0b", 7, "a/", "a\udcff"])
def test_no_name_that_lay_on_storage_leads_out_of_the_folder(memory: list[int], name: Any) -> None:
    assert not is_inside(name)
    last = with_files(memory, {name: torch.zeros(3, dtype=torch.uint8)}).last()
    with pytest.raises(StateError, match="not a file of a folder"):
        user_files.take_back(Reads(), last)
    assert found == []


@pytest.mark.parametrize("content", [{"a": 3}, {"a": torch.zeros(2)}, [1], None])
def test_what_is_not_files_by_name_is_not_loaded(memory: list[int], content: Any) -> None:
    with pytest.raises(StateError, match="not a file"):
        user_files.take_back(Reads(), with_files(memory, content).last())


def test_a_load_that_fails_is_told_in_one_line_and_a_state_without_one_says_what_is_missing(memory: list[int]) -> None:
    side = kept(memory, TREE)
    last = CommitBuffer([open_sides(memory)[side]]).last()
    assert last is not None

    def fails(folder: Path) -> None:
        raise KeyError("optimizer")

    with pytest.raises(StateError, match="load of checkpoint= raised KeyError: 'optimizer'"):
        user_files.take_back(Checkpoint(nothing, fails), last)
    with pytest.raises(StateError, match="this State has no functions"):
        user_files.take_back(None, last)


def test_no_room_for_the_files_is_told_in_one_line(
    memory: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = kept(memory, TREE)
    last = CommitBuffer([open_sides(memory)[side]]).last()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StateError, match=r"its files cannot be written for load of checkpoint=: .*No such file"):
        user_files.take_back(Reads(), last)


def asked_to_hold(memory: list[int], number: int, **more: Any) -> tuple[CommitBuffer, HeldCommit, Said]:
    """A process whose launcher has named a future commit. Its link has no connection: nobody stays for long."""
    buffer, link = CommitBuffer(open_sides(memory)), Said()
    held = HeldCommit(buffer, link)
    held.request({"tell": "keep", "commit": [0, 1, number], **more})
    return buffer, held, link


def nothing_is_kept(memory: list[int]) -> bool:
    return not any(os.pread(each, 1, KEPT_AT) == b"\1" for each in memory)


def fails() -> int:
    raise ZeroDivisionError("division\nby zero")


@pytest.mark.parametrize("then", [None, [0, 1, 9]])
def test_what_is_not_wanted_any_more_when_save_has_done_is_neither_kept_nor_said(
    memory: list[int], then: list[int] | None
) -> None:
    buffer, held, link = asked_to_hold(memory, 1)
    commit(buffer, 1)

    def instead() -> int:
        held.request({"tell": "keep", "commit": then})
        release(memory)
        with user_files.written(writes(TREE), LOCAL) as files:
            return buffer.keep_instead(files, identity(1), step=1)

    held.committed(identity(1), 1, instead=instead)
    assert link.heard == []
    assert nothing_is_kept(memory)
    assert held.is_requested == (then is not None)


def test_what_save_raises_costs_that_checkpoint_and_is_said(memory: list[int]) -> None:
    buffer, held, link = asked_to_hold(memory, 1)
    commit(buffer, 1)
    held.committed(identity(1), 1, instead=fails)
    [(what, said)] = link.heard
    assert what == "commit_not_kept"
    assert said["failed"] == "save of checkpoint= failed: ZeroDivisionError: division by zero"
    assert nothing_is_kept(memory)


def test_where_nobody_goes_on_beyond_it_the_commit_itself_is_kept_if_save_fails(memory: list[int]) -> None:
    buffer, held, link = asked_to_hold(memory, 2, stay=True)
    commit(buffer, 1, 2)
    held.committed(identity(2), 2, instead=fails)
    [(what, said)] = link.heard
    assert (what, said["files"], said["step"]) == ("commit_kept", False, 2)
    number, data = lies_on(memory[said["side"]])
    assert (number, contents(2).tree in data) == (2, True)


def test_a_commit_that_was_not_named_has_nothing_saved(memory: list[int]) -> None:
    buffer, held, link = asked_to_hold(memory, 5)
    for number in (3, 4, 6):
        commit(buffer, number)
        held.committed(identity(number), number, instead=fails)
    assert [what for what, _ in link.heard] == ["commit_not_kept"]
    assert "failed" not in link.heard[0][1]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match=r"save='model\.pt' cannot be called"):
        Checkpoint("model.pt", nothing)


@pytest.mark.parametrize("content", [{"a": 3}, {"../a": torch.zeros(3, dtype=torch.uint8)}, [1], 7])
def test_what_is_not_files_by_name_is_not_exported_and_told_in_one_line(
    tmp_path: Path, memory: list[int], content: Any
) -> None:
    buffer = with_files(memory, content)
    whole = {"place": str(tmp_path / "store"), "commit": list(identity(1)), "parts": 1}
    request = {"do": "write", **whole, "shares": {"0": [0, 0, buffer.keep()]}, "sides": {"0": memory}}
    sealed = agent_requests.answered(
        {"do": "seal", **whole, "world": 1, "written": [agent_requests.answered(request)], "keep": 3}
    )
    assert "failed" not in sealed
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(Permanent):
        export.export(store, store.folders()[0], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("tree", [TREE, {"state_dict": b"abc", "names": b"def"}], ids=["any", "as of an optimizer"])
def test_they_are_exported_to_a_new_folder_and_nowhere_else(
    tmp_path: Path, memory: list[int], tree: dict[str, bytes]
) -> None:
    place, to = tmp_path / "store", tmp_path / "out"
    stored(place, memory, tree)
    store = open_store(str(place))
    [name] = store.folders()
    assert export.export(store, name, to) == len(tree)
    assert {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()} == tree
    for taken in (to, tmp_path / "model.pt"):
        with pytest.raises(UsageError, match="give it a new folder"):
            export.export(store, name, taken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]
