"""``hvd-elastic logs`` of a job on this machine, from the files of ``--output-filename``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.io.output_files import INDEX, Indexer, file_of
from hvd_elastic_ext.launcher.cli import logs
from hvd_elastic_ext.launcher.cli.logs import Output, Wanted
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from tests.support.journals import JournalMaker

RUN = "20260131T070000.000-3f2a"
BEGAN = 1769842800.0


class Made:
    """A folder of output, written as the launcher does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, BEGAN
        folder.mkdir()
        self.next_launcher()

    def next_launcher(self) -> None:
        self._indexer = Indexer(self.folder, lambda: self.now)

    def line(self, who: str, text: str, *, stream: str = "stdout", after: float = 0.0) -> Made:
        self.now += after
        file = file_of(who, stream)
        (self.folder / file).parent.mkdir(exist_ok=True)
        if mark := self._indexer.line(file, host="a", slot=0, generation=1):
            with (self.folder / INDEX).open("a") as index:
                index.write(mark)
        with (self.folder / file).open("a", newline="") as output:
            output.write(text)
        return self

    def read(self, **wanted: object) -> list[str]:
        return list(Output(self.folder, Wanted(**wanted)).lines(follow=False, runs=lambda: False))  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    return Made(tmp_path / "out")


@pytest.fixture
def job(made: Made) -> Path:
    """The folder of a job ``digits`` with this output."""
    folder = Path(".hvd-elastic/digits")
    folder.mkdir(parents=True, mode=0o700)
    started(folder, output=str(made.folder))
    return folder


def started(folder: Path, **fields: object) -> None:
    journal = JournalMaker().add("started", run=RUN, job="digits", **fields).steps(10)
    (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in journal.lines))


def test_lines_come_in_the_order_of_the_index_with_the_prefix_of_the_terminal(made: Made) -> None:
    made.line("a[1]", "boots\n", stream="stderr").line("1", "one\n", after=6).line("0", "zero\n", after=6)
    made.line("1", "two\n", after=6).line("0", "10%\r20%\r\n")
    assert made.read() == [
        "[a slot 1]<stderr>:boots\n", "[1]<stdout>:one\n", "[0]<stdout>:zero\n", "[0]<stdout>:20%\n",
        "[1]<stdout>:two\n",
    ]  # fmt: skip


def test_a_rank_the_last_lines_and_a_time_can_be_chosen(made: Made) -> None:
    for number in range(6):
        made.line(str(number % 2), f"{number}\n", after=10)
    made.line("0", "no end", after=1)
    assert made.read(rank=1) == [f"[1]<stdout>:{number}\n" for number in (1, 3, 5)]
    assert made.read(tail=2) == ["[1]<stdout>:5\n", "[0]<stdout>:no end\n"]
    assert made.read(tail=0) == []
    assert made.read(since=made.now - 4.0) == ["[1]<stdout>:5\n", "[0]<stdout>:no end\n"]
    assert made.read(rank=1, tail=1, stamped=True) == ["2026-01-31T07:01:00Z [1]<stdout>:5\n"]


def test_the_index_counts_also_where_the_folder_of_output_is_a_link(made: Made, tmp_path: Path) -> None:
    made.line("1", "one\n").line("0", "zero\n", after=6)
    (tmp_path / "link").symlink_to(made.folder)
    made.folder = tmp_path / "link"
    assert made.read() == ["[1]<stdout>:one\n", "[0]<stdout>:zero\n"]


def test_a_folder_with_a_strange_number_is_no_error(made: Made) -> None:
    made.line("0", "zero\n").line("²", "two\n", after=6)
    assert made.read() == ["[0]<stdout>:zero\n", "[²]<stdout>:two\n"]


def test_output_without_an_index_is_shown_whole(made: Made) -> None:
    made.line("0", "a\n").line("1", "b\n")
    (made.folder / INDEX).unlink()
    assert made.read(since=made.now + 99, stamped=True) == ["? [0]<stdout>:a\n", "? [1]<stdout>:b\n"]


@pytest.mark.parametrize("kind", ["fifo", "link", "linked folder"])
def test_what_others_have_put_in_place_of_a_file_is_refused_and_nothing_waits_for_it(
    kind: str, made: Made, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "stdout").write_text("secret\n")
    made.line("0", "a\n")
    file = made.folder / "rank.1" / "stdout"
    if kind == "linked folder":
        file.parent.symlink_to(secret)
        assert made.read() == ["[0]<stdout>:a\n"]
        return
    file.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(file)
        assert made.read() == ["[0]<stdout>:a\n"]  # it has no bytes, and is not opened
    else:
        file.symlink_to(secret / "stdout")
        with pytest.raises(Permanent, match=r"rank\.1/stdout cannot be read"):
            made.read()


def test_an_index_that_is_a_pipe_is_as_good_as_none(made: Made) -> None:
    made.line("0", "a\n")
    (made.folder / INDEX).unlink()
    os.mkfifo(made.folder / INDEX)
    assert made.read() == ["[0]<stdout>:a\n"]


def test_following_shows_new_lines_whole_and_ends_with_the_job(made: Made) -> None:
    made.line("0", "before\nhalf a ")
    steps = iter(
        [
            lambda: made.line("0", "line\n"),
            lambda: made.line("1", "a new rank\n"),
            lambda: (made.folder / "rank.0" / "stdout").write_text("anew\n"),
        ]
    )
    looks = [True, True, True, True, False]

    def sleep(_: float) -> None:
        next(steps)()

    lines = Output(made.folder, Wanted(tail=1)).lines(follow=True, runs=lambda: looks.pop(0), sleep=sleep)
    assert list(lines) == [
        "[0]<stdout>:before\n", "[0]<stdout>:half a line\n", "[1]<stdout>:a new rank\n", "[0]<stdout>:anew\n",
    ]  # fmt: skip


def test_the_journal_names_the_folder_and_earlier_runs_are_left_out_with_a_remark(
    job: Path, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.now = BEGAN - 3600
    made.line("0", "the run before\n")
    made.now = BEGAN + 1
    made.next_launcher()
    made.line("0", "this run\n")
    assert logs.main(["digits"]) == 0
    said = capsys.readouterr()
    assert said.out == "[0]<stdout>:this run\n"
    assert said.err == "hvd-elastic logs: output of earlier runs is left out; --all-runs shows it\n"
    assert logs.main(["--state-dir", str(job), "--all-runs"]) == 0
    assert capsys.readouterr() == ("[0]<stdout>:the run before\n[0]<stdout>:this run\n", "")
    assert logs.main([str(job / "journal.jsonl"), "--tail", "1"]) == 0
    assert capsys.readouterr() == ("[0]<stdout>:this run\n", "")


def test_following_a_job_that_has_ended_ends(job: Path, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.line("0", "this run\n")
    with StateDir(job):
        pass
    began = time.monotonic()
    assert logs.main(["digits", "-f"]) == 0
    assert capsys.readouterr().out == "[0]<stdout>:this run\n"
    assert time.monotonic() - began < 10


def test_a_job_that_keeps_no_output_names_the_option(job: Path) -> None:
    started(job, output=None)
    with pytest.raises(
        Permanent, match=r"^digits does not keep the output .*`hvd-elastic run --output-filename FOLDER` keeps it$"
    ):
        logs.main(["digits"])
    (job / "journal.jsonl").unlink()
    with pytest.raises(UsageError, match="no job has begun with this journal"):
        logs.main(["digits"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["digits", "--previous"],
            "--previous is for a job on a cluster, and this one was started here; .*-n NAMESPACE",
        ),
        (["digits", "-i", "pod"], "--instance is for a job on a cluster"),
        (["digits", "--tail", "-2"], "--tail -2: it must be greater than or equal to -1"),
        (["digits", "--rank", "-1"], "--rank -1: ranks count from 0"),
        (["digits", "--since", "soon"], "--since 'soon': write a time, such as --since 30s, 10m or 1h30m"),
        (["digits", "--since", "0"], "--since 0: it must be greater than 0"),
        (["digits", "--since-time", "noon"], "--since-time 'noon' is not a time"),
    ],
)
@pytest.mark.usefixtures("job")
def test_what_cannot_be_meant_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        logs.main(words)


@pytest.mark.usefixtures("job")
def test_a_name_means_a_job_here_if_there_is_one_and_else_one_on_a_cluster() -> None:
    for words in ([], ["digits"], ["digits", "-f"], [".hvd-elastic/digits"], ["--job", "digits"]):
        assert logs.not_here(words) == ""
    assert logs.not_here(["digit"]) == "there is no job digit in ./.hvd-elastic; did you mean digits?"
    Path("mnist").mkdir()
    assert logs.not_here(["mnist", "--rank", "0"]), "a folder of code is not a job"


def test_the_start_of_a_run_is_in_its_name() -> None:
    assert logs.run_began(RUN, 1.0) == BEGAN
    assert (logs.run_began("20269931T070000.000-3f2a", 1.0), logs.run_began("None", 1.0)) == (1.0, 1.0)
