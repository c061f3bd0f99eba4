"""What scripts/matrix-training takes from the pages, and what it demands of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tooling import training_trial
from tooling.errors import ToolingError
from tooling.training_trial import page_commands, readme_script, train

PAGE = """# Installing

    git clone URL hvd-elastic-ext && cd hvd-elastic-ext
    wheel=$(scripts/build-horovod --python /path/to/your/python)
    /path/to/your/python -m pip install "$wheel" numpy .

Words.

    make demo
"""


def test_the_commands_after_the_clone_are_for_this_python_and_no_others_are_taken() -> None:
    assert page_commands(PAGE, python="/a b/python").splitlines() == [
        "wheel=$(scripts/build-horovod --python '/a b/python')",
        "'/a b/python' -m pip install \"$wheel\" numpy .",
    ]


@pytest.mark.parametrize("lost", ["git clone", "build-horovod", "pip install", "/path/to/your/python"])
def test_a_page_that_says_something_else_is_an_error_and_not_a_trial_of_less(lost: str) -> None:
    with pytest.raises(ToolingError, match=r"docs/install\.md"):
        page_commands(PAGE.replace(lost, "something"), python="python3")


def test_the_pages_of_this_tree_have_what_is_tried(root: Path) -> None:
    assert len(page_commands((root / "docs/install.md").read_text(), python="python3").splitlines()) == 2
    script = readme_script((root / "README.md").read_text())
    compile(script, "train.py", "exec")
    samples, batch, epochs = (int(number) for number in ("3200", "32", "5"))
    for shown in (f"torch.randn({samples}, ", f"batch_size={batch},", "epochs = int(sys.argv[1])"):
        assert shown in script
    assert training_trial.RUN.endswith(f" train.py {epochs}")
    assert epochs * samples // (2 * batch) == training_trial.STEPS


def test_a_readme_with_two_scripts_is_an_error() -> None:
    with pytest.raises(ToolingError, match="shows 2 scripts"):
        readme_script("```python\na\n```\n\n```python\nb\n```\n")


LAUNCHER = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path

def stopped(*_):
    say("the same command goes on after step {kept}")
    sys.exit({code})

def say(line):
    print(line, flush=True)

signal.signal(signal.SIGINT, stopped)
if Path("ran").exists():
    say("training goes on after step {found}")
    say("epoch 4, 2 workers, loss 0.0003")
    say("training is done; step {steps} is in checkpoints")
    sys.exit({end})
Path("ran").touch()
worker = subprocess.Popen([sys.executable, "train.py"])
say("epoch 0, 2 workers, loss 1.2")
if worker.wait() == -signal.SIGKILL:
    say("rank 1 (localhost slot 1) has ended: crashed: killed by SIGKILL")
if {survives}:
    say("world 2: size 2 (localhost:2); worker failed; downtime 3.3 s; steps lost: 0")
    say("epoch 1, 2 workers, loss 0.5")
    time.sleep(60)
"""
AS_IT_SHOULD: dict[str, object] = {"kept": 106, "found": 106, "code": 130, "steps": 250, "end": 0, "survives": True}


def a_job(folder: Path, **otherwise: object) -> Path:
    """A program in the launcher's place."""
    program = folder / "hvd-elastic"
    program.write_text(LAUNCHER.format(python=sys.executable, **{**AS_IT_SHOULD, **otherwise}))
    program.chmod(0o755)
    (folder / "train.py").write_text("import time\ntime.sleep(60)\n")
    return program


def test_a_job_that_survives_and_goes_on_passes(tmp_path: Path) -> None:
    assert train(tmp_path, program=a_job(tmp_path)) == 106


@pytest.mark.parametrize(
    ("otherwise", "complaint"),
    [
        ({"survives": False}, "the job ended without `world 2"),
        ({"code": 1}, "exit code 1, not 130"),
        ({"found": 0}, "without `training goes on after step 106"),
        ({"end": 1}, "exit code 1, not 0"),
        ({"steps": 249}, "without `training is done; step 250"),
    ],
)
def test_a_job_that_does_otherwise_fails_the_trial(
    tmp_path: Path, otherwise: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ToolingError, match=complaint):
        train(tmp_path, program=a_job(tmp_path, **otherwise))


def test_a_job_that_never_trains_fails_the_trial_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_trial, "PATIENCE", 0.5)
    program = tmp_path / "hvd-elastic"
    program.write_text("#!/bin/sh\necho waiting\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(ToolingError, match=r"waited 0 s for epoch 0, 2 workers:\nwaiting"):
        train(tmp_path, program=program)
