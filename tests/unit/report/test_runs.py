"""Several runs in one journal: each has a report of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.report.command import main
from hvd_elastic_ext.report.job_report import build_report
from hvd_elastic_ext.report.runs import choose, runs


def line(mono: float, event: str, **fields: object) -> Record:
    return Record(mono, mono, 0, event, fields)


def run(at: float, name: str | None, steps: int) -> list[Record]:
    named = {} if name is None else {"run": name}
    stepped = [line(at + 1 + step, "stepped", step=step) for step in range(1, steps + 1)]
    formed = line(at + 1, "resized", cause="start", added=["a"], removed=[], size=1, steps_lost=None)
    return [
        line(at, "started", **named),
        formed,
        *stepped,
        line(at + 50, "finished", code=0, reason="training is done"),
    ]


THREE = [*run(0.0, None, 5), *run(100.0, "20261123T1-aa", 40), *run(200.0, "20261123T2-bb", 30)]


def test_the_newest_run_is_shown_and_steps_of_earlier_ones_are_not_lost_steps() -> None:
    chosen, said = choose(runs(THREE), None)
    report = build_report(chosen)
    assert (report.run, report.steps, report.code, report.duration_s) == ("20261123T2-bb", 30, 0, 50.0)
    assert not [row for row in report.rows if row.event == "started"]
    assert not sum(row.steps_lost or 0 for row in report.rows)
    assert said == "run 3 of 3 (20261123T2-bb); --run N shows another one, --run all all"


@pytest.mark.parametrize(("which", "steps"), [("1", 5), ("2", 40), ("20261123T1", 40), ("20261123T2-bb", 30)])
def test_another_run_is_shown_by_number_or_name(which: str, steps: int) -> None:
    assert build_report(choose(runs(THREE), which)[0]).steps == steps


def test_all_runs_can_be_one_report() -> None:
    chosen, said = choose(runs(THREE), "all")
    assert (len(chosen), said) == (len(THREE), "")


@pytest.mark.parametrize("which", ["0", "4", "20261123T", "yesterday", "", "²", "9" * 5000])
def test_an_unknown_run_is_an_error_that_names_the_known_ones(which: str) -> None:
    with pytest.raises(UsageError, match=r"1 \(without a name\), 2 \(20261123T1-aa\), 3 \(20261123T2-bb\), or all"):
        choose(runs(THREE), which)


def test_a_restarted_launcher_continues_its_run() -> None:
    [only] = runs([*run(0.0, "x", 5)[:-1], *run(100.0, "x", 9)])
    assert [row.event for row in build_report(only.records).rows].count("started") == 1
    [old] = runs([*run(0.0, None, 5), *run(100.0, None, 9)])  # written before there were runs
    assert old.name is None


def test_the_command_shows_one_run_and_says_that_there_are_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal.jsonl"
    plain = [{"t": r.t, "mono": r.mono, "generation": 0, "event": r.event, **r.fields} for r in THREE]
    journal.write_text("".join(json.dumps(each) + "\n" for each in plain))
    assert main([str(journal), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["run"] == "20261123T2-bb"
    assert shown.err == "hvd-elastic events: run 3 of 3 (20261123T2-bb); --run N shows another one, --run all all\n"
    assert main([str(journal), "--json", "--run", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 40
