"""Repetitions, options and the folders of jobs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks import cli, jobs, runner
from benchmarks.cases import CASES
from benchmarks.cases.daemon import cluster
from benchmarks.cases.resize import growth
from benchmarks.cases.resize.hosts_change_to_driver import known
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial
from benchmarks.steps import Stamp


class Recorder:
    """A measurement that records its trials, and fails for one of them."""

    def __init__(self, *, fails: int | None = None) -> None:
        self.trials: list[Trial] = []
        self._fails = fails

    def __call__(self, trial: Trial) -> Mapping[str, Sequence[Timing]]:
        assert trial.folder.is_dir()
        self.trials.append(trial)
        if len(self.trials) == self._fails:
            raise BenchmarkError("no worker came")
        return {"q": [Timing(1.0 if trial.side == "ours" else 2.0)]}


def case(measure: Recorder) -> Case:
    return Case("fake", "nothing is measured", (Figure("q"),), measure=measure, repeats=2)


def test_the_sides_take_turns_each_in_a_folder_of_its_own_and_a_failure_keeps_its_place() -> None:
    measure = Recorder(fails=2)
    done = list(runner.run(case(measure), repeats=2, quick=False))
    assert [(t.side, t.number) for t in measure.trials] == [("stock", 0), ("ours", 0), ("stock", 1), ("ours", 1)]
    assert [repetition.failure for repetition in done] == [None, "no worker came", None, None]
    folders = {trial.folder for trial in measure.trials}
    assert len(folders) == 4
    assert not any(folder.exists() for folder in folders)


@pytest.fixture
def only_fake(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    measure = Recorder()
    monkeypatch.setattr(cli, "CASES", (case(measure),))
    return measure


def test_a_run_prints_its_report_and_writes_it_where_told(
    only_fake: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    markdown, data = tmp_path / "report.md", tmp_path / "report.json"
    assert cli.main(["--markdown", str(markdown), "--json", str(data)]) == 0
    printed = capsys.readouterr()
    assert "## fake" in markdown.read_text()
    assert "| q, median | 0.50 | 1.00 s" in markdown.read_text()
    assert "| fake | q, median | 0.50 " in printed.out
    assert "2/2 ours: q 1.00 s" in printed.err
    written = json.loads(data.read_text())
    assert [r["side"] for r in written["repetitions"]] == ["stock", "ours", "stock", "ours"]
    assert written["rows"][0]["ours"]["value"] == {"seconds": 1.0, "at_least": False}
    assert written["machine"]["cores"] >= 1


def test_a_failed_repetition_makes_the_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "CASES", (case(Recorder(fails=1)),))
    assert cli.main(["--repeat", "1"]) == 1
    printed = capsys.readouterr()
    assert "fake, stock, repetition 1: no worker came" in printed.out
    assert "stock: FAILED: no worker came" in printed.err


def test_an_interrupted_run_still_reports_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = Recorder()

    def interrupted(trial: Trial) -> Mapping[str, Sequence[Timing]]:
        if len(measure.trials) == 2:
            raise KeyboardInterrupt
        return measure(trial)

    monkeypatch.setattr(cli, "CASES", (Case("fake", "", (Figure("q"),), measure=interrupted),))
    assert cli.main([]) == 130
    assert "| fake | q, median | 0.50 " in capsys.readouterr().out


def test_quick_and_repeat_decide_how_often(only_fake: Recorder) -> None:
    cli.main(["--quick"])
    assert [trial.quick for trial in only_fake.trials] == [True, True]
    cli.main(["--repeat", "3"])
    assert len(only_fake.trials) == 2 + 6


def test_an_unknown_case_is_named_in_one_line_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["kill-recovery-9"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("benchmarks: there is no case 'kill-recovery-9'; there are ")
    assert all(known.name in said for known in CASES)
    assert said.count("\n") == 1


def test_settings_for_other_jobs_do_not_reach_a_measured_one(tmp_path: Path) -> None:
    kept = jobs.environ({"HVD_ELASTIC_JOURNAL": "x", "HOROVOD_TIMELINE": "x", "PATH": "/bin"}, tmp_path)
    assert kept.pop("PYTHONPATH") == str(jobs.ROOT)
    assert kept == {"PATH": "/bin", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def test_stamps_are_read_by_complete_lines(tmp_path: Path) -> None:
    job = jobs.Job("ours", tmp_path)
    assert job.stamps() == []
    whole, half = "1.0 7 0 1 1 localhost\n", "2.0 7 0 1 "
    job.stamps_file.write_text(whole + half)
    assert [stamp.mono for stamp in job.stamps()] == [1.0]
    job.stamps_file.write_text(whole + half + "2 localhost\n")
    assert [stamp.mono for stamp in job.stamps()] == [1.0, 2.0]


def test_stocks_first_answer_with_a_list_is_when_its_driver_knew(tmp_path: Path) -> None:
    job = jobs.Job("stock", tmp_path)
    job.asked.write_text("1000000000 localhost:1\n2500000000 localhost:1 127.0.0.1:2\n3000000000 localhost:1\n4000")
    assert known(job) == {("localhost:1",): 1.0, ("localhost:1", "127.0.0.1:2"): 2.5}


def test_our_published_line_is_when_our_driver_knew(tmp_path: Path) -> None:
    job = jobs.Job("ours", tmp_path)
    job.journal.write_text(
        '{"t":1,"mono":5.5,"generation":1,"event":"published","hosts":{"localhost":1,"127.0.0.1":2}}\n'
        '{"t":1,"mono":6.5,"generation":2,"event":"refused","reason":"x"}\n'
    )
    assert known(job) == {("localhost:1", "127.0.0.1:2"): 5.5}


def test_growth_without_the_first_worker_is_a_failure_not_a_figure() -> None:
    only_newcomer = [Stamp(1.0, 1, 0, 1, 0, "localhost"), Stamp(9.0, 2, 0, 2, 0, "127.0.0.1")]
    with pytest.raises(BenchmarkError, match="did not live"):
        growth.figures(only_newcomer, survivor=1, changed=5.0)


def test_a_case_that_this_machine_cannot_do_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = Recorder()
    cannot = Case("cannot", "", (Figure("q"),), measure=measure, missing=lambda: "needs root: use sudo")
    monkeypatch.setattr(cli, "CASES", (case(Recorder()), cannot))
    assert cli.main(["--quick"]) == 0
    printed = capsys.readouterr()
    assert measure.trials == []
    assert "Not run: cannot: needs root: use sudo" in printed.out
    assert "| cannot" not in printed.out


def test_changes_that_came_slower_than_they_should_are_no_measurement() -> None:
    cluster.refuse_slow(62.0, 60.0)
    with pytest.raises(BenchmarkError, match="750 changes a second instead of 1,000: the machine is too slow or too"):
        cluster.refuse_slow(80.0, 60.0)


def test_the_folder_of_a_hosts_file_in_memory_is_marked_as_in_use(tmp_path: Path) -> None:
    one = cluster.Follower(Trial(side="ours", number=0, folder=tmp_path, quick=True), "daemon")
    try:
        look = "import sys; from tests.support import leaks; print(int(sys.argv[1]) in leaks._held_by_strangers('x'))"
        number = str(one.file.parent.stat().st_ino)
        seen = subprocess.run([sys.executable, "-c", look, number], capture_output=True, text=True, check=True)
        assert seen.stdout == "True\n"
    finally:
        one.end()
    assert not one.file.parent.exists()


def test_a_case_that_takes_too_long_is_measured_only_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = dataclasses.replace(case(Recorder()), name="slow", named_only=True)
    monkeypatch.setattr(cli, "CASES", (case(Recorder()), slow))
    assert [each.name for each in cli.parse([]).cases] == ["fake"]
    assert [each.name for each in cli.parse(["slow"]).cases] == ["slow"]
