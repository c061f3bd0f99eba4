"""``hvd-elastic replay``, without the process that it starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.recorded_steps import Head, Noted
from hvd_elastic_ext.launcher.cli import replay_step, run, run_options
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.folder.state_folder import RecordedProgram

REPORT: dict[str, Any] = {
    "job": "new",
    "checkpoint": "c20",
    "checkpoint_step": 20,
    "step": 31,
    "loss": 0.25,
    "world": {"generation": 2, "size": 2},
    "learning_rates": [0.1, 0.1, 0.2],
    "ranks": [{"rank": 0, "loss": 0.5, "samples": [4, 6]}, {"rank": 1, "loss": 0.0, "samples": ["a:0-2"]}],
    "gradients": [
        {"parameter": "model.weight", "shape": [3, 4], "norm": 2.0, "norm_at_update": 2.0},
        {"parameter": "model.scale", "shape": [], "norm": "nan", "norm_at_update": "nan"},
        {"parameter": "model.unused", "shape": [1], "norm": None, "norm_at_update": None},
    ],
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HVD_ELASTIC_JOB", "HVD_ELASTIC_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


def noted(step: int) -> Noted:
    head = Head(3, 0, step, step, ((1, 0),))
    return Noted(f"c{step}", Identity(7, 1, 1, step), 1, step, head.encode())


def job(**more: Any) -> Path:
    """A job's folder."""
    Path("train.py").touch()
    usual = {"command": ("python3", "train.py"), "cwd": str(Path.cwd()), "engine": "horovod", "variables": {}}
    path = Path(".hvd-elastic") / "new"
    with state_folder.StateDir(path) as folder:
        folder.note_program(RecordedProgram(**{**usual, "checkpoints": str(path / "checkpoints"), **more}))
    return path


def refused(*arguments: str) -> str:
    with pytest.raises(UsageError) as error:
        replay_step.main(arguments)
    return str(error.value)


def test_a_job_that_notes_nothing_or_makes_no_checkpoints_is_refused_in_one_line() -> None:
    with state_folder.StateDir(Path(".hvd-elastic") / "old"):
        pass
    assert refused("old", "--step", "3") == "old: was not started with --replay, so no step of it was noted"
    job(checkpoints=None)
    assert "start it with --checkpoint-every" in refused("new", "--step", "3")
    job(adopts=True)
    assert "--adopt" in refused("new", "--step", "3")


def test_a_step_outside_of_those_that_can_be_executed_is_refused_with_their_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job()
    assert "two checkpoints" in refused("new", "--step", "3")  # none has been made yet
    monkeypatch.setattr(replay_step, "_noted", lambda store: [noted(40), noted(20), noted(60)])
    for step in ("20", "61", "-1"):
        assert refused("new", "--step", step) == f"new: step {step} cannot be executed again: steps 21 to 60 can"
    assert replay_step.main(["new"]) == 0
    assert capsys.readouterr().out == "new: which steps can be executed again: steps 21 to 60 can\n"
    assert replay_step.main(["new", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job": "new", "steps": [[21, 60]]}


def test_a_job_whose_script_folder_or_program_is_not_on_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_step, "_noted", lambda store: [noted(20), noted(60)])
    job(cwd="/nowhere/at/all")
    assert "no folder /nowhere/at/all" in refused("new", "--step", "30")
    job()
    Path("train.py").unlink()
    assert f"no {Path.cwd() / 'train.py'}" in refused("new", "--step", "30")
    job(command=("no-such-program", "train.py"))
    assert "no no-such-program" in refused("new", "--step", "30")


def test_secrets_among_a_jobs_variables_are_not_kept_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_step, "_noted", lambda store: [noted(20), noted(60)])
    monkeypatch.delenv("API_TOKEN", raising=False)
    words = ["-np", "1", "-H", "localhost:1", "--replay", "API_TOKEN=x7", "LR=1", "python3", "t.py"]
    settings = run_options.parse(words, {"PATH": os.environ["PATH"]})
    program = run.program_of(settings)
    assert (program.variables, program.secrets) == ({"LR": "1"}, ("API_TOKEN",))
    assert "x7" not in program.encode()
    job(secrets=("API_TOKEN",))
    assert "the job got API_TOKEN on its command line" in refused("new", "--step", "30")


def test_a_run_that_notes_no_steps_leaves_no_program_of_an_earlier_one() -> None:
    with state_folder.StateDir(job()) as folder:
        folder.note_program(None)
    assert "was not started with --replay" in refused("new", "--step", "3")


def test_what_others_may_change_or_that_cannot_be_read_is_not_run() -> None:
    """The command of the process is in the folder, and nowhere in a checkpoint."""
    path = job() / state_folder.PROGRAM
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    assert "program.json" in refused("new", "--step", "3")
    path.chmod(0o600)
    for text in ("{}", "[]", "no JSON", '{"command": 3}'):
        path.write_text(text)
        assert "was not started with --replay" in refused("new", "--step", "3"), text


def test_the_process_finds_no_world_but_its_own() -> None:
    of_a_job = {
        "HVD_ELASTIC_LINK": "7", "HVD_ELASTIC_WORKER_JOURNAL": "/j", "HOROVOD_RANK": "1", "HOROVOD_ELASTIC": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "h", "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "MASTER_ADDR": "h",
        "OMPI_COMM_WORLD_SIZE": "4",
    }  # fmt: skip
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "HOROVOD_FUSION_THRESHOLD": "0", "LR": "1"}
    own = {"HVD_ELASTIC_REPLAY": "1", "PYTHONUNBUFFERED": "1"}
    assert replay_step.environment({**of_a_job, **kept}, engine="horovod") == {**kept, **own}
    assert replay_step.environment(kept, engine="torch") == {**kept, **own, "HVD_ELASTIC_COLLECTIVES": "torch"}


def test_the_table_has_what_the_step_was_and_a_second_norm_only_if_the_script_has_changed_one() -> None:
    text = replay_step.shown(REPORT)
    lines = [line.split() for line in text.splitlines()]
    assert "step 31 of new, from c20 (step 20) on" in text
    assert "world 2, 2 workers; learning rate 0.1, 0.2" in text
    assert "loss 0.25" in text
    assert ["model.weight", "3x4", "2"] in lines
    assert ["model.scale", "1", "nan"] in lines
    assert ["model.unused", "1", "none"] in lines
    assert ["0", "0.5", "2", "4", "6"] in lines
    assert ["1", "0", "1", "a:0-2"] in lines
    assert "AT THE UPDATE" not in text
    first = {**REPORT["gradients"][0], "norm_at_update": 1.0}
    text = replay_step.shown({**REPORT, "loss": None, "gradients": [first, *REPORT["gradients"][1:]]})
    assert ["model.weight", "3x4", "2", "1"] in [line.split() for line in text.splitlines()]
    assert "loss unknown" in text


def test_a_process_that_ends_otherwise_is_one_line_with_its_end_and_its_output_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job(command=("sh", "-c", "echo a line; exit 3"))
    monkeypatch.setattr(replay_step, "_noted", lambda store: [noted(20), noted(60)])
    monkeypatch.setattr(replay_step, "_commit", lambda *_: {})
    assert cli.main(["replay", "new", "--step", "30"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err == (
        "a line\n"
        "hvd-elastic replay: new: step 30 was not executed: the script ended with exit code 3 before that step; "
        "its output is above\n"
    )
