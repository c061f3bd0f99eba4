"""scripts/matrix-training, for one Python: install as docs/install.md says, and train through a kill and a stop."""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from .build_horovod import PINNED_TORCH, installed_version
from .errors import ToolingError
from .processes import output_of, raise_on_sigterm, run_logged, say
from .wheel_cache import cache_directory

STEPS = 250
"""Of the README's script with two workers: five epochs of 3200 samples, 32 for each worker in a step."""
RUN = "run -np 2 --hosts-file hosts --checkpoint-dir checkpoints --blacklist-cooldown-range 1 1 train.py 5"
PATIENCE = 300.0
"""Seconds until the next thing must have happened, on a busy machine."""
SHOWN = ("torch", "numpy", "setuptools")

_Met = TypeVar("_Met")


def main() -> int:
    """Run from the command line: 0 or 1, with a line about the outcome on stdout."""
    raise_on_sigterm()
    parser = argparse.ArgumentParser(prog="training-trial", description=__doc__, allow_abbrev=False)
    parser.add_argument("python", help="the Python to make an environment with")
    parser.add_argument("work", type=Path, help="a folder with a copy of the tree in tree/, which is used up")
    parser.add_argument("--torch", metavar="VERSION", default=PINNED_TORCH, help="default: %(default)s")
    options = parser.parse_args()
    try:
        install(options.work, python=options.python, torch=options.torch)
        kept = train(options.work / "job", program=options.work / "env/bin/hvd-elastic")
    except ToolingError as error:
        say(f"training-trial: {error}")
        print(f"FAILED: {str(error).splitlines()[0].removesuffix('. Its last lines:')}")
        return 1
    except KeyboardInterrupt:
        return 130
    python = str(options.work / "env/bin/python")
    versions = ", ".join(f"{name} {installed_version(python, name)}" for name in SHOWN)
    print(f"passed; {versions}; {STEPS} steps, one worker killed, stopped and resumed after step {kept}")
    return 0


def install(work: Path, *, python: str, torch: str) -> None:
    """Make an environment as a user would, and check that it is whole without the tree it came from."""
    environment, tree, job = work / "env", work / "tree", work / "job"
    inside = str(environment / "bin/python")
    page = (tree / "docs/install.md").read_text(encoding="utf-8")
    job.mkdir()
    (job / "train.py").write_text(readme_script((tree / "README.md").read_text(encoding="utf-8")))
    (job / "hosts").write_text("localhost:2\n")
    _step([python, "-m", "venv", str(environment)], label="Making a virtual environment", work=work)
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    _step([inside, "-m", "pip", "install", *index, f"torch=={torch}"], label=f"Installing torch {torch}", work=work)
    # The page's own lines, so that what it says is what was tried.
    commands = page_commands(page, python=inside)
    say(commands)
    _step(["bash", "-euc", commands], label="Installing as docs/install.md says", work=work, cwd=tree)
    shutil.rmtree(tree)
    _step([inside, "-m", "pip", "check"], label="pip check", work=work)
    program = str(environment / "bin/hvd-elastic")
    _step([program, "doctor", "--local"], label="hvd-elastic doctor", work=work, cwd=job)
    # Without the clone: the same wheel, from the cache.
    wheel = Path(output_of([program, "build-horovod"], environment=os.environ).splitlines()[-1])
    if f"horovod @ {wheel.as_uri()}" not in output_of([inside, "-m", "pip", "freeze"], environment=os.environ):
        raise ToolingError(f"hvd-elastic build-horovod prints {wheel}, which is not the wheel that the page installs")


def _step(command: list[str], *, label: str, work: Path, cwd: Path | None = None) -> None:
    log = cache_directory(os.environ) / "logs" / f"training-trial-{work.name}.log"  # it outlives the trial
    run_logged(command, label=label, log=log, environment=os.environ, cwd=cwd)


def page_commands(page: str, *, python: str) -> str:
    """The page's first commands after the clone, for this Python. Raises ToolingError if they are not what is known."""
    found = re.search(r"^    git clone .*\n((?:    .*\n)+)", page, re.MULTILINE)
    commands = "" if found is None else re.sub("^    ", "", found[1], flags=re.MULTILINE)
    if "build-horovod" not in commands or "pip install" not in commands or "/path/to/your/python" not in commands:
        raise ToolingError("docs/install.md shows no commands after a clone that build Horovod and install this")
    return commands.replace("/path/to/your/python", shlex.quote(python))


def readme_script(readme: str) -> str:
    """The script that the README shows for PyTorch. Raises ToolingError if there is not just one."""
    shown = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    scripts = [script for script in shown if "import hvd_elastic_ext.torch" in script]
    if len(scripts) != 1:
        raise ToolingError(f"README.md shows {len(scripts)} scripts for PyTorch; one is expected")
    return str(scripts[0])


def train(job: Path, *, program: Path) -> int:
    """Train, kill a worker, stop, and give the same command again. Returns the step after which it went on.

    Raises ToolingError, with what the job printed, if anything else happens than should.
    """
    command = [str(program), *RUN.split()]
    say(f"Training: {shlex.join(['hvd-elastic', *command[1:]])}")
    with _running(command, job=job) as first:
        first.wait_for(r"epoch 0, 2 workers")
        os.kill(_a_worker(job), signal.SIGKILL)
        first.wait_for(r"has ended: crashed: killed by SIGKILL")
        first.wait_for(r"world \d+: size 2 .*; worker failed")
        first.wait_for(r"(?s); worker failed.*epoch \d, 2 workers")
        first.popen.send_signal(signal.SIGINT)
        first.ends_with(130)
        kept = int(first.wait_for(r"the same command goes on after step (\d+)")[1])
    say(f"A worker was killed, and the job stopped after step {kept}. Going on with the same command.")
    with _running(command, job=job) as second:
        second.ends_with(0)
        second.wait_for(rf"training goes on after step {kept}\b")
        second.wait_for(r"epoch 4, 2 workers, loss \d\.\d")
        second.wait_for(rf"training is done; step {STEPS} is in ")
    return kept


class _Job:
    """A launcher, and what it has printed to a file."""

    def __init__(self, popen: "subprocess.Popen[bytes]", output: Path) -> None:
        self.popen = popen
        self._output = output

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the job has printed this."""

        def printed() -> re.Match[str] | None:
            ended = self.popen.poll() is not None  # asked first: what it printed at its end counts
            found = re.search(pattern, self._text())
            if found is None and ended:
                raise ToolingError(f"the job ended without `{pattern}`:\n{self._text()}")
            return found

        return self._until(printed, pattern)

    def ends_with(self, code: int) -> None:
        """Wait until the launcher has ended, with this exit code."""
        ended = self._until(lambda: None if self.popen.poll() is None else (self.popen.returncode,), "the job's end")
        if ended != (code,):
            raise ToolingError(f"the job ended with exit code {ended[0]}, not {code}:\n{self._text()}")

    def _until(self, condition: Callable[[], _Met | None], what: str) -> _Met:
        deadline = time.monotonic() + PATIENCE
        while (met := condition()) is None:
            if time.monotonic() > deadline:
                raise ToolingError(f"waited {PATIENCE:.0f} s for {what}:\n{self._text()}")
            time.sleep(0.05)
        return met

    def _text(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")


@contextmanager
def _running(command: list[str], *, job: Path) -> Iterator[_Job]:
    """Start a launcher for the block, and leave nothing of it behind."""
    output = job / "output"
    with output.open("wb") as file:
        popen = subprocess.Popen(
            command, cwd=job, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _Job(popen, output)
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second one ends a job at once
            popen.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                popen.wait(20)
                break


def _a_worker(job: Path) -> int:
    """The number of a process that trains: it runs the script itself, in the job's folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if len(words) > 1 and words[1] == b"train.py" and (entry / "cwd").resolve() == job.resolve():
                return int(entry.name)
    raise ToolingError("no process trains")


if __name__ == "__main__":
    sys.exit(main())
