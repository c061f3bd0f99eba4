"""Each example trains in a world of two, and through the loss of a worker."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow

EXAMPLES = Path(__file__).parents[3] / "examples"
OPTIONS = {
    "02-unmodified": ["--adopt"],
    "03-ddp": ["--engine", "torch"],
    "05-stream": [],
    "06-converted": ["--checkpoint-every", "auto"],
    "09-unlike-hosts": [],
    "11-averaging": [],
}
"""What the launcher is told for each. 01-digits has tests of its own, 04-lightning one below, and 08-tensorflow1 one in
``with_tensorflow``."""
WITH_TENSORFLOW = pytest.param("07-keras", marks=needs_tensorflow)


def test_every_example_is_listed_and_has_a_test() -> None:
    scripts = {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    assert scripts == {*OPTIONS, "01-digits", "04-lightning", "07-keras", "08-tensorflow1"}
    assert scripts == set(re.findall(r"^\| \[[\w-]+\]\(([\w-]+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE))


@pytest.mark.soak
@pytest.mark.parametrize("name", [*OPTIONS, WITH_TENSORFLOW])
def test_an_example_trains_to_its_end_though_a_worker_is_killed(tmp_path: Path, name: str) -> None:
    (tmp_path / "hosts").write_text("localhost:2\n")
    run = [
        sys.executable,
        "-m",
        "hvd_elastic_ext.cli",
        "run",
        *OPTIONS.get(name, []),
        "--min-np",
        "1",
        "--hosts-file",
        "hosts",
    ]
    run += ["--blacklist-cooldown-range", "60", "60"]  # the killed one does not come back within the test
    script = EXAMPLES / name / "train.py"
    with run_process([*run, str(script), "--epochs", "6", "--step-delay", "0.02"], cwd=tmp_path) as job:
        job.wait_for(r"epoch 1/6 .* 2 workers", timeout=90)
        os.kill(worker_of(script, tmp_path), signal.SIGKILL)
        assert job.wait(100) == 0, job.output
    losses = [float(loss) for loss in re.findall(r"epoch \d/6  loss (\S+)", job.output)]
    assert len(losses) >= 6
    assert losses[-1] < losses[0] / 2
    assert re.search(r"epoch 6/6 .* 1 workers", job.output)
    if name == "06-converted":  # rank 0 may have been the one that was killed
        log = (tmp_path / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in log] == [1, 2, 3, 4, 5, 6]
        assert (tmp_path / "best.pt").is_file()


def worker_of(script: Path, cwd: Path) -> int:
    """The number of a process that trains: it runs the script itself, in the job's folder."""
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name), reverse=True):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if len(words) > 1 and words[1] == str(script).encode() and (entry / "cwd").resolve() == cwd.resolve():
                return int(entry.name)
        except OSError:  # it has ended, or is another user's
            continue
    raise AssertionError(f"no process runs {script}")


def test_the_unmodified_script_knows_nothing_of_this_package() -> None:
    tree = ast.parse((EXAMPLES / "02-unmodified/train.py").read_text())
    imported = {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([ast.alias(node.module or "")] if isinstance(node, ast.ImportFrom) else node.names)
    }
    assert "horovod.torch" in imported
    assert not any(name.startswith("hvd_elastic_ext") for name in imported)


def test_the_example_for_lightning_is_python_and_trains_where_lightning_is_installed(tmp_path: Path) -> None:
    """Lightning is not a dependency of the tests: it would bring many packages for one example."""
    script = EXAMPLES / "04-lightning/train.py"
    compile(script.read_text(), script, "exec")
    if importlib.util.find_spec("lightning") is None:
        return
    (tmp_path / "hosts").write_text("localhost:2\n")
    run = [sys.executable, "-m", "hvd_elastic_ext.cli", "run", "--engine", "torchrun", "--hosts-file", "hosts"]
    with run_process([*run, str(script), "--epochs", "2"], cwd=tmp_path) as job:
        assert job.wait(100) == 0, job.output
    assert re.search(r"epoch 2/2  2 workers", job.output)
