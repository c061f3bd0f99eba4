"""``hvd-elastic simulate``: what it prints, writes and refuses."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.launcher.cli.run_options import parse
from hvd_elastic_ext.simulate import options, study
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.command import _Progress, main
from hvd_elastic_ext.simulate.study import Choice
from tests.support.clock import ManualClock

SMALL = ["--synthetic", "hosts=3,days=0.05,mtbf=30m,back=5m,notice=30s", "--min-np", "1"]


def test_a_table_of_where_the_time_went_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--price", "1", "--versus", "restart", "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert "goodput" in said
    assert "cost:" in said
    assert "restarted from its last checkpoint" in said


def test_what_there_is_one_of_is_in_the_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: "1 worlds", "starts 1 times"."""
    (tmp_path / "calm.csv").write_text("time,host,event\n0,a,up\n0,b,up\n1800,b,down\n")
    assert main([str(tmp_path / "calm.csv"), "--min-np", "1", "--versus", "restart"]) == 0
    said = capsys.readouterr().out
    assert " 1 world, 0 roll-backs behind a step, 0 checkpoints, " in said
    assert "the other job starts once, saves every 30m" in said
    (tmp_path / "short.csv").write_text("time,host,event\n0,a,up\n0,b,up\n600,b,crash\n1800,b,down\n")
    assert main([str(tmp_path / "short.csv"), "--min-np", "1", "--versus", "stock", "--times", "every=50"]) == 0
    said = capsys.readouterr().out
    assert ", 1 roll-back behind a step, " in said
    assert "the other job starts 2 times, " in said


def test_json_has_all_times_of_every_seed_and_of_what_it_is_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json", "--seeds", "2", "--versus", "restart"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [sum(job["slot_seconds"].values()) > 0 for job in found["jobs"]] == [True, True]
    assert found["goodput"]["lowest"] <= found["goodput"]["mean"] <= found["goodput"]["highest"]
    assert [job["kept"] <= job["done"] for job in found["restarted"]] == [True, True]


def test_the_journal_of_a_demo_is_simulated_and_compared_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from-journal", "--min-np", "2", "--versus", "restart"]) == 0
    said = capsys.readouterr().out
    assert "the journal's job" in said
    assert "restarted from its last checkpoint" in said


def test_a_comparison_says_by_how_much_each_is_less_than_the_best_and_how_sure_that_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--compare", "min_np=1,3", "--seeds", "4", "--json"]) == 0
    best, other = json.loads(capsys.readouterr().out)
    assert best["less_than_best_percent"] == {"mean": 0.0, "half": 0.0}
    assert other["less_than_best_percent"]["mean"] > 0.0
    assert other["less_than_best_percent"]["half"] > 0.0
    assert main([*SMALL, "--compare", "min_np=1,3", "--seeds", "4"]) == 0
    assert "less than the best by %" in capsys.readouterr().out


def test_the_recommended_options_are_written_for_run_and_where_chance_has_a_part_are_those_of_many_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = tmp_path / "best.yaml"
    words = ["--compare", "min_np=1,3", "--recommend", str(best), "--json"]
    assert main([*SMALL, *words]) == 0
    said = capsys.readouterr()
    assert {len(each["jobs"]) for each in json.loads(said.out)} == {10}
    assert "goodput" in said.err
    assert read_config(best) == {"min-np": 1}
    (tmp_path / "t.csv").write_text("time,host,event,slots\n0,a,up,3\n900,a,down,\n")
    assert main([str(tmp_path / "t.csv"), *words]) == 0
    assert {len(each["jobs"]) for each in json.loads(capsys.readouterr().out)} == {1}


def test_equal_results_on_a_trace_of_a_file_are_called_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("time,host,event\n0,a,up\n0,b,up\n1h,b,down\n")
    best = tmp_path / "best.yaml"
    assert main([str(tmp_path / "t.csv"), "--compare", "min_np=1,2", "--recommend", str(best)]) == 0
    said = capsys.readouterr().err
    assert "; both results are equal\n" in said
    assert "chance" not in said + best.read_text()


def test_a_simulated_job_is_drawn_as_a_real_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    assert main([*SMALL, "--plot", str(tmp_path / "p.svg")]) == 0
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_what_hosts_cost_is_told_where_the_trace_has_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("time,host,event,slots,price\n0,a,up,2,0.5\n3600,a,price,,1\n7200,a,down,,\n")
    assert main([str(tmp_path / "t.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["cost"] == pytest.approx(2 * 0.5 + 2 * 1.0)


def test_a_simulated_journal_is_written(tmp_path: Path) -> None:
    main([*SMALL, "--journal", str(tmp_path / "j")])
    events = [json.loads(line)["event"] for line in (tmp_path / "j").read_text().splitlines()]
    assert {"published", "spawned", "resized", "stepped"} <= set(events)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x.csv", "--synthetic", "hosts=2"], "leave one out"),
        (["--seeds", "0"], "from 1 to 1,000"),
        (["--recommend", "f"], "names? some"),
        (["--journal", "f", "--seeds", "2"], "of one job"),
        (["none.csv"], "cannot be read"),
        (["--compare", "min_np=1", "--versus", "restart"], "leave one out"),
        (["--assume", "notice=2m"], "name its file"),
        (["--times", "boot@4=2"], "only step differs by size"),
        (["--times", "stepp=1"], "did you mean step"),
        (["--times", "step=0"], "write a number of seconds"),
        (["--times", "a100:join=2"], "may differ by kind"),
        (["--price", "cheap"], "write the price"),
        (["--price", ""], "write the price"),
        (["--price", "0.9,"], "write the price"),
        (["--min-np", "0", "-np", "2"], "--min-np"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(words)


def test_times_are_read_by_name_and_by_kind_of_host() -> None:
    found = options.times("step=0.5s, every=10, a100:step=0.25, a100:boot=1m", Times(boot_s=3.0))
    assert (found.step_s, found.every, found.boot_s) == (0.5, 10, 3.0)
    assert (found.of("a100", "step_s"), found.of("a100", "boot_s"), found.of("v100", "step_s")) == (0.25, 60.0, 0.5)


def test_a_step_may_take_longer_in_a_larger_world_and_sizes_between_are_interpolated() -> None:
    found = options.times("step=1s, step@2=1s, step@8=4s, slow:step=2s")
    assert [found.step("", size) for size in (1, 2, 5, 8, 16)] == [1.0, 1.0, 2.5, 4.0, 4.0]
    assert found.step("slow", 8) == 8.0
    assert options.times("step=3s", found).step("", 8) == 3.0


def test_without_arguments_an_example_that_trains_to_its_end_is_shown_beside_stock_and_called_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("An example, as no trace is given: eight spot hosts of four slots")
    assert "Yours: hvd-elastic simulate TRACE.csv --min-np N" in said
    assert "stock Horovod" in said
    assert "fails" not in said
    assert " over " not in said


def test_an_example_whose_output_a_program_reads_says_so_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--work", "1000"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["jobs"][0]["failed"] is None
    assert said.err.startswith("An example, as no trace is given")


def test_a_job_that_fails_is_said_first_with_the_time_and_what_comes_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("time,host,event\n0,a,up\n0,b,up\n1h,b,down\n3h,a,down\n")
    assert main([str(tmp_path / "t.csv"), "--min-np", "2"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("The job fails after 1h 10m of 3h: slots needed: 2, published: 1 (a) after 600 s")
    assert any(line.startswith("over") and "the job has ended or failed" in line for line in others)


def test_run_takes_every_option_that_a_recommendation_may_have(tmp_path: Path) -> None:
    values = {
        **dict.fromkeys(options.NUMBERS, 3),
        **dict.fromkeys(options.SECONDS, 90.0),
        **{name: choices[-1] for name, choices in options.CHOICES.items()},
        "checkpoint_every": "60s",
        "commit_every": "auto",
        "allowed_sizes": "3,4",
        "spares": "10%",
        "autoscale": "efficiency",
        "restart_from_scratch": True,
        "replay": True,
    }
    assert values.keys() == set(options.RUN)
    best = tmp_path / "best.yaml"
    for name, value in values.items():
        best.write_text(study.config({"num_proc": 3, name: value}, Choice({"min_num_proc": 3}, ()), "why"))
        more = ["--max-np", "4", "--hosts-file", "h"] if name == "autoscale" else []
        found = parse(["--config", str(best), *more, "python", "train.py"], {})
        assert found.options.limits.least == 3, name


def test_a_long_simulation_says_how_far_it_is() -> None:
    clock, stream = ManualClock(mono=0.0), io.StringIO()
    progress = _Progress(stream, 2, clock.mono)
    for share in (*(number / 100 for number in range(100)), *(number / 200 for number in range(100))):
        clock.advance(1.0)
        progress(share)
    progress.over()
    assert stream.getvalue().splitlines() == [
        f"hvd-elastic simulate: job {job} of 2: {share} % of the trace is simulated"
        for job, share in ((1, 3), (1, 9), (1, 29), (1, 59), (2, 10), (2, 40))
    ]


@pytest.mark.parametrize("option", ["--journal", "--recommend"])
def test_what_is_written_follows_no_pipe_and_no_link_of_others(option: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    more = ["--compare", "settle=1,2", "--seeds", "2"] if option == "--recommend" else []
    try:
        with pytest.raises(UsageError, match=rf"{option} .*/out: it is a pipe"):
            main([*SMALL, *more, option, str(path)])
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


def test_a_simulated_journal_is_drawn_and_kept(tmp_path: Path) -> None:
    main([*SMALL, "--journal", str(tmp_path / "j"), "--plot", str(tmp_path / "p.svg")])
    assert (tmp_path / "j").read_text().count("\n") > 5
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_a_grid_of_more_jobs_than_can_be_simulated_is_one_line() -> None:
    grid = ",".join(map(str, range(1, 102)))
    with pytest.raises(UsageError, match="--compare and --seeds make 10,100 jobs; at most 10,000 are simulated"):
        main([*SMALL, "--seeds", "100", "--compare", f"settle={grid}"])
