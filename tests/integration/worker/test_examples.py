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

from tests.integration.launcher.conftest import Launched
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
    "12-replay": ["--replay"],
}
"""What the launcher is told for each. 01-digits has tests of its own, 04-lightning and 10-spares have one below, and
08-tensorflow1 one in ``with_tensorflow``."""
WITH_TENSORFLOW = pytest.param("07-keras", marks=needs_tensorflow)


def test_every_example_is_listed_and_has_a_test() -> None:
    scripts = {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    assert scripts == {*OPTIONS, "01-digits", "04-lightning", "07-keras", "08-tensorflow1", "10-spares"}
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
    if name == "12-replay":
        lost = re.search(r"steps lost: [1-9]", job.output)  # none, if the kill came right after a commit
        assert bool(lost) == ("lost steps executed again as they were: " in job.output)
    if name == "06-converted":  # rank 0 may have been the one that was killed
        log = (tmp_path / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in log] == [1, 2, 3, 4, 5, 6]
        assert (tmp_path / "best.pt").is_file()


@pytest.mark.soak
@pytest.mark.timeout(200)
@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_in_the_example_with_a_spare_the_next_world_after_a_kill_has_as_many_workers(
    tmp_path: Path, engine: str
) -> None:
    job = Launched(tmp_path)
    job.set_hosts("localhost:2")
    options = ("--engine", engine, "-np", "2", "--min-np", "1", "--spares", "1")
    script = (EXAMPLES / "10-spares" / "train.py", "--epochs", "1000", "--step-delay", "0.02", "--load", "0.1")
    with job.run(*options, sys.executable, *script) as process:
        job.wait_for("a spare", lambda: len(job.events("parked")) > 2, timeout=120)
        [lost] = [each.get("pid") for each in job.events("spawned") if each.get("slot") == 1]
        os.kill(lost, signal.SIGKILL)
        job.wait_for("the next world", lambda: len(job.events("resized")) > 1)
        before = len(epochs_of(process.output))
        job.wait_for("more epochs", lambda: len(epochs_of(process.output)) > before + 1)
        process.terminate()
        assert process.wait(60) == 143, process.output
    _, world = job.events("resized")
    assert (world.get("size"), world.get("spares")) == (2, ["localhost[2]"])
    assert 0 <= world.get("steps_lost") <= 1
    assert {workers for *_, workers in epochs_of(process.output)} == {"2"}


def epochs_of(output: str) -> list[tuple[str, str]]:
    """Loss and number of workers of each epoch that has ended."""
    return re.findall(r"epoch \d+/\d+  loss (\S+)  (\d+) workers", output)


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
