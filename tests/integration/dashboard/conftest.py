"""A dashboard as a user starts it, and requests as a browser sends them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from hvd_elastic_ext.io.output_files import INDEX, Indexer, file_of
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from tests.support.journals import JournalMaker
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

MARKUP = "<img src=x onerror=\"document.title='XSS'\"><script>document.title='XSS'</script>"


class Served:
    """A running dashboard. ``url``: its whole address, with the token."""

    def __init__(self, process: RunningProcess, url: str) -> None:
        self.process, self.url = process, url
        parts = urlsplit(url)
        self.host, self.port, self.token = str(parts.hostname), int(parts.port or 0), parts.fragment

    def ask(
        self, path: str, *, method: str = "GET", token: str | None = "", body: str | None = None, **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Return status, body and headers of an answer. ``token``: "" is the right one, None sends none."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token or self.token}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), {name.lower(): text for name, text in answer.getheaders()}

    def json(self, path: str) -> Any:
        status, text, _ = self.ask(path)
        assert status == 200, text
        return json.loads(text)


@contextlib.contextmanager
def dashboard(folder: Path, *words: str, files: int | None = None) -> Iterator[Served]:
    """``files``: how many the server may open."""
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", "dashboard", "--listen", "0", *words]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$0" "$@"', *command]
    with run_process(command, cwd=folder) as process:
        wait_until(lambda: "/#" in process.output, what="the address", timeout=60, show=lambda: process.output)
        [url] = [line for line in process.output.splitlines() if line.startswith("http://")]
        yield Served(process, url)


def write_job(folder: Path, name: str, journal: JournalMaker) -> Path:
    """Write a journal into the folder of a job of this name."""
    home = folder / ".hvd-elastic" / name
    home.mkdir(parents=True)
    return journal.write(home / "journal.jsonl")


def write_output(folder: Path, who: str, *lines: str, host: str, generation: int, t: float) -> None:
    """Write output of a rank, as the launcher keeps it."""
    indexer, file = Indexer(folder, lambda: t), file_of(who, "stderr")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    with (folder / INDEX).open("a") as index, (folder / file).open("a") as output:
        for line in lines:
            index.write(indexer.line(file, host=host, slot=0, generation=generation) or "")
            output.write(line + "\n")


def failed_job(folder: Path) -> JournalMaker:
    """Return the journal of a job that loses host h3 twice, and fails. Names, reasons and output contain markup."""
    output = folder / "output"
    evil = f"h3{MARKUP}"
    journal = JournalMaker(wall=1_790_000_000.0)
    journal.add("started", run="r1", job="digits", command="python", checkpoints="/ck", output=str(output), pid=1)
    journal.add("published", number=1, hosts={"h1": 1, "h2": 1, evil: 1}, added=["h1", "h2", evil], removed=[])
    journal.resized(
        "start", 3, after=2, hosts={"h1": 1, "h2": 1, evil: 1}, added=["h1", "h2", evil], removed=[], failed={}
    )
    journal.steps(40, every=1.0).add("sealed", step=40, path="/ck/40", bytes=5_000_000, seconds=2.5)
    journal.add("interval", seconds=60.0, reason=f"a save takes 2.5 s {MARKUP}")
    for generation in (2, 3):
        journal.steps(10, every=1.0, generation=0 if generation == 2 else 2)
        why = f"crashed: exit code 1: ModuleNotFoundError: no module named 'nmupy' {MARKUP}"
        journal.add("exited", after=0.5, host=evil, slot=0, rank=2, code=1, cause="crashed", reason=why)
        write_output(output, "2", "epoch 1", f"ModuleNotFoundError: nmupy {MARKUP}", host=evil, generation=generation,
                     t=journal.wall + journal.mono)  # fmt: skip
        journal.add("struck", subject=f"slot 0 of {evil}", host=evil, cause="crashed", reason=why, cooldown_s=8.0)
        journal.back(3)
        journal.resized("worker failed", 2, after=3.0, hosts={"h1": 1, "h2": 1}, added=[], removed=[], failed={evil: 1},
                        steps_lost=3, downtime_s=4.5, generation=generation)  # fmt: skip
    write_output(output, "0", *(f"step {n}" for n in range(50)), host="h1", generation=3, t=journal.wall + journal.mono)
    journal.add("scaled", hosts=4, before=3, leaving=[], reason=f"4 hosts are worth it {MARKUP}")
    journal.add("straggler", host="h2", slot=0, rank=1, step_s=2.0, median_s=1.0, drained=False, reason="2 s for 1 s")
    return journal.add("finished", after=1, code=1, reason=f"slot 0 of {evil} has failed too often")


EVIL: Final = "<img src=x onerror=alert(1)>"
"""A name that a folder may have."""


def other_jobs(folder: Path) -> None:
    """Write jobs in each state, older than the failed one. ``bare`` keeps no output; the output of ``moved`` is
    missing."""

    def begun(name: str, output: Path | None = None) -> JournalMaker:
        journal = JournalMaker().add("started", run="r", job=name, output=output and str(output))
        return journal.resized("start", 2, hosts={"h1": 1, "h2": 1}, added=["h1", "h2"], failed={}).steps(20)

    def crashed(journal: JournalMaker) -> JournalMaker:
        journal.add("exited", host="h2", slot=0, rank=1, code=1, cause="crashed", reason="crashed: exit code 1")
        journal.resized("worker failed", 1, after=1, hosts={"h1": 1}, failed={"h2": 1}, added=[], removed=[])
        journal.add("straggler", host="h1", slot=0, rank=0, step_s=2.0, median_s=1.0, drained=False, reason="2 s")
        return journal.steps(5).add("finished", code=1, reason=f"no such module {MARKUP}")

    jobs = {
        "done": begun("done").add("finished", code=0, reason="training is done"),
        "stopped": begun("stopped").add("finished", code=130, reason="stopped by SIGINT"),
        "asleep": begun("asleep").add("finished", code=75, reason=f"fewer hosts than --min-np {MARKUP}"),
        EVIL: begun("evil"),
        "trains": begun("trains"),
        "bare": crashed(begun("bare")),
        "moved": crashed(begun("moved", folder / "nowhere")),
    }
    for at, (name, journal) in enumerate(jobs.items()):
        os.utime(write_job(folder, name, journal), (1e9 + at, 1e9 + at))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a failed job, and with older jobs, one of which has a launcher."""
    made = tmp_path_factory.mktemp("jobs")
    other_jobs(made)
    write_job(made, "digits", failed_job(made))
    with StateDir(made / ".hvd-elastic" / "trains"):
        yield made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """A server for all tests of a module, because it takes seconds to start."""
    with dashboard(folder) as found:
        yield found
