"""The demo for real: Horovod trains, hosts come and go, and nothing stays behind."""

from __future__ import annotations

import io
import itertools
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.demo.command import Plan, plan_of, run_demo
from hvd_elastic_ext.demo.job import Folder
from hvd_elastic_ext.demo.scenario import Event, Watch
from hvd_elastic_ext.report.command import read_journal
from hvd_elastic_ext.report.job_report import JobReport, build_report
from tests.integration.launcher.conftest import records
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

pytest.importorskip("torch", reason="the demo trains with torch; scripts/setup installs it")
pytest.importorskip("horovod", reason="the demo runs Horovod; scripts/setup builds it")


def demo(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hvd_elastic_ext.cli", "demo", *map(str, arguments)]


def until_workers_start(process: RunningProcess, out: Path) -> None:
    def spawned() -> bool:
        assert process.returncode is None, process.output
        return len(records(out / "journal.jsonl", "spawned")) >= 2

    wait_until(spawned, what="two workers", timeout=60.0, show=lambda: process.output)


def check_a_whole_demo(out: Path, text: str) -> None:
    records, foreign = read_journal(out / "journal.jsonl")
    report = build_report(records)
    assert foreign == 0
    assert report.code == 0
    assert all(row.downtime_s is not None for row in report.resizes if row.cause != "start")
    check_that_nobody_noticed_the_launchers_death(report)
    check_that_a_notice_and_a_sleep_cost_no_step(report)
    words = ("hosts added", "worker failed", "cooldown over", "hosts removed", "refused", "notice", "slept", "woke")
    for word in (*words, "resumed", "1 sleep cost", "Test accuracy: 0.9"):
        assert word in text
    assert (out / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "picture.html").read_text()
    assert str(out / "picture.png") in text
    check_that_the_page_is_there_and_its_token_nowhere(out, text)


def check_that_the_page_is_there_and_its_token_nowhere(out: Path, text: str) -> None:
    token = re.findall(r"^Page of the job: http://127\.0\.0\.1:\d+/#(\S+)$", text, re.MULTILINE)[0]
    assert f"Page:    {out / 'page.html'}" in text
    assert "Training is done" in (out / "page.html").read_text()
    assert (out / "output" / "rank.0" / "stderr").exists() or (out / "output" / "rank.0" / "stdout").exists()
    written = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in written if token.encode() in path.read_bytes()]


def check_that_nobody_noticed_the_launchers_death(report: JobReport) -> None:
    at = [i for i, row in enumerate(report.rows) if row.event == "started"]
    assert [report.rows[i].cause for i in at] == [EVENTS["started"].says({})]
    before, after = report.rows[at[0] - 1], report.rows[at[0] + 1]
    assert "steps done meanwhile" in report.rows[at[0]].note
    # No world was formed for it, and nobody rolled back: the next that happens is what the script does next.
    assert before.event == "resized"
    assert before.cause in ("start", "hosts added")  # a busy machine starts with those that are ready
    assert (after.event, after.cause) == ("resized", "hosts removed") or after.event == "refused"
    assert after.steps_lost in (0, None)


def check_that_a_notice_and_a_sleep_cost_no_step(report: JobReport) -> None:
    known = [row for row in report.rows if row.event in ("notice", "sealed", "slept", "woke", "resumed", "resized")]
    first = [row.event for row in known].index("notice")
    # On a busy machine hosts that are told at one moment may say so one after the other.
    told = [next(rows) for _, rows in itertools.groupby(known[first:], key=lambda row: row.event)]
    notice, spared, _, _, slept, _, _, awake, *_ = told
    events = ["notice", "resized", "notice", "sealed", "slept", "woke", "resumed", "resized"]
    assert [row.event for row in told[:8]] == events
    assert (spared.cause, spared.removed, spared.steps_lost) == ("hosts removed", notice.hosts, 0)
    assert (slept.before, slept.after) == (2, 0)
    assert slept.downtime_s is not None
    assert (awake.cause, awake.before, awake.after, awake.steps_lost) == ("start", 0, 3, 0)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_whole_demo_shows_every_event_and_writes_into_its_folder_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    elsewhere = {name: str(tmp_path / name) for name in ("HOME", "TMPDIR")}
    for folder in elsewhere.values():
        Path(folder).mkdir()
    env = {**elsewhere, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None}
    with run_process(demo("--out", out), cwd=tmp_path, env=env) as process:
        assert process.wait(580.0) == 0, process.output
        check_a_whole_demo(out, process.stdout)
        assert process.tree() == []
    records, _ = read_journal(out / "journal.jsonl")
    assert [row.cause for row in build_report(records).resizes].count("worker failed") == 2
    outside = [path for path in tmp_path.rglob("*") if out not in (path, *path.parents)]
    assert sorted(outside) == sorted(map(Path, elsewhere.values())), "the demo wrote outside its folder"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_job_that_chooses_its_size_asks_for_hosts_while_they_pay_and_gives_one_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run_process(demo("--out", out, "--part", "sizes", "--plain"), cwd=tmp_path) as process:
        assert process.wait(380.0) == 0, process.output
        assert process.tree() == []
    report = build_report(read_journal(out / "sizes" / "journal.jsonl")[0])
    assert [row.cause for row in report.rows if row.event == "scaled"] == ["1 → 2 hosts", "2 → 3 hosts", "3 → 2 hosts"]
    assert [row.steps_lost for row in report.resizes[1:]] == [0, 0, 0]
    assert [speed.hosts for speed in report.speeds] == [1, 2, 3]
    assert "each host as fast as the first" in (out / "sizes" / "picture.html").read_text()


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_an_effect_that_does_not_show_is_one_clear_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No third host comes, though the scenario expects one."""
    plan = plan_of(quick=True, seed=1)
    never = Event("a host that nobody adds", Watch(), size=3, causes=("hosts added",), within_s=1.0)
    with Folder(tmp_path / "out") as folder:
        code = run_demo(replace(plan, scenario=(plan.scenario[0], never)), folder, stream=io.StringIO(), plain=True)
    assert code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "FAILED: a host that nobody adds: waited 1 s without success for a world of 3" in said


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_an_accuracy_below_the_mark_is_one_clear_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(quick=True, seed=1)
    short = Plan(replace(plan.training, epochs=1, step_delays_s=(0.0,)), plan.scenario[:1], least_accuracy=1.01)
    stream = io.StringIO()
    with Folder(tmp_path / "out") as folder:
        code = run_demo(short, folder, stream=stream, plain=True)
    assert code == 1
    assert "FAILED: test accuracy is 0." in capsys.readouterr().err
    assert "Picture:" in stream.getvalue()


def until_it_starts(process: RunningProcess, out: Path) -> None:
    wait_until((out / "journal.jsonl").exists, what="the launcher's start", timeout=60.0, show=lambda: process.output)


def until_nothing_is_left(process: RunningProcess) -> None:
    wait_until(lambda: process.tree() == [], what="the end of every process", timeout=40.0, show=process.tree)


@pytest.mark.timeout(200)
def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run_process(demo("--out", out)) as process:
        until_workers_start(process, out)
        assert len(process.tree()) >= 4  # an agent, the launcher, two workers at least
        process.kill()
        assert process.wait(40.0) == -signal.SIGKILL, process.output
        until_nothing_is_left(process)


@pytest.mark.timeout(200)
def test_a_make_that_is_killed_takes_the_demo_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"demo:\n\t@exec {' '.join(demo('--out', out))}\n")
    make = ["make", "--silent", f"--file={makefile}", "demo"]
    with run_process(make, env={"HVD_DIE_WITH_PARENT": "1"}, cwd=Path(__file__).parents[3]) as process:
        until_it_starts(process, out)
        process.kill()
        until_nothing_is_left(process)


def test_a_demo_that_is_told_to_stop_ends_in_order(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run_process(demo("--out", out)) as process:
        until_it_starts(process, out)
        process.send_signal(signal.SIGINT)
        assert process.wait(40.0) == 130, process.output
        assert process.tree() == []
    assert process.stderr.count("\n") == 1
    assert "told to stop" in process.stderr
