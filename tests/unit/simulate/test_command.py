"""``hvd-elastic simulate``: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.command import main

SMALL = ["--synthetic", "hosts=3,days=0.05,mtbf=30m,back=5m,notice=30s", "--min-np", "1"]


def test_a_table_of_where_the_time_went_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--price", "1", "--versus", "restart", "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert "goodput" in said
    assert "cost:" in said
    assert "restarted from its last checkpoint" in said


def test_json_has_every_heap_of_every_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json", "--seeds", "2"]) == 0
    jobs = json.loads(capsys.readouterr().out)
    assert len(jobs) == 2
    assert all(sum(job["slot_seconds"].values()) > 0 for job in jobs)


def test_the_recommended_options_are_written_for_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = tmp_path / "best.yaml"
    assert main([*SMALL, "--compare", "min_np=1,3", "--recommend", str(best)]) == 0
    assert read_config(best) == {"min-num-proc": 1}
    assert "goodput" in capsys.readouterr().err


def test_a_simulated_journal_is_written(tmp_path: Path) -> None:
    main([*SMALL, "--journal", str(tmp_path / "j")])
    events = [json.loads(line)["event"] for line in (tmp_path / "j").read_text().splitlines()]
    assert {"published", "spawned", "resized", "stepped"} <= set(events)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x.csv", "--synthetic", "hosts=2"], "leave one out"),
        (["--seeds", "0"], "above 0"),
        (["--recommend", "f"], "names? some"),
        (["--journal", "f", "--seeds", "2"], "of one job"),
        (["none.csv"], "cannot be read"),
        (["--times", "stepp=1"], "did you mean step"),
        (["--times", "step=0"], "write a number of seconds"),
        (["--times", "a100:join=2"], "may differ by kind"),
        (["--price", "cheap"], "write the price"),
        (["--min-np", "0", "-np", "2"], "--min-np"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(words)


def test_times_are_read_by_name_and_by_kind_of_host() -> None:
    found = options.times(
        "step=0.5s, every=10, a100:step=250m, a100:boot=1m".replace("250m", "0.25"), Times(boot_s=3.0)
    )
    assert (found.step_s, found.every, found.boot_s) == (0.5, 10, 3.0)
    assert (found.of("a100", "step_s"), found.of("a100", "boot_s"), found.of("v100", "step_s")) == (0.25, 60.0, 0.5)
