"""A job on spot instances that come and go as in a published trace: the work that is in the weights at the end.

Stock's part is done twice, with the same trace and training: by stock Horovod and by torchrun, each in a restart loop
that begins at its last ``torch.save``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from benchmarks import jobs, kept_work, replay
from benchmarks.model import Case, Figure, Timing, Trial, Values
from benchmarks.steps import Stamp

Contender = Literal["ours", "stock", "torchrun"]

HOSTS, QUICK_HOSTS = 4, 2
LASTS_S, QUICK_S = 240.0, 14.0
"""Seconds of the whole trace, and of the part that a quick run replays."""
NOTICE_S: Final = 10.0
"""A third of the shortest notice of a cloud. It is in real seconds, because reactions to it are."""
BATCH: Final = 64
SEED: Final = 4
CHECKPOINT: Final = "2s"
GLOO_S: Final = 10
"""This helps stock: with the usual 30 s, some recoveries take a tenth of the replay."""
STEPS, QUICK_STEPS = 60, 8
SCRIPTS: Final = Path(__file__).parents[2] / "scripts"
LAUNCHERS: Final = ("hvd_elastic_ext.cli", "benchmarks.scripts.torchrun_hosts")

PEERS: Final = {"stock": "Horovod and torch.save", "torchrun": "torchrun and torch.save"}


def quantities(contender: str) -> tuple[str, str, str]:
    """Return the table's names of time, rate and loss beside a peer."""
    beside = f"(stock: {PEERS[contender]})"
    return f"time for 1,000 samples kept {beside}", f"samples kept {beside}", f"work that was lost {beside}"


def names() -> Iterator[str]:
    """Yield spellings of this machine's address. Each launcher takes them for separate hosts, and starts them without
    ssh."""
    yield "localhost"
    parts = (("127", "0x7f", "0177"), (".", ".0.", ".0.0.", ".00.", ".0x0.", ".00.00."), ("1", "01", "0x1", "0x01"))
    yield from ("".join(spelling) for spelling in itertools.product(*parts))


def measure(trial: Trial) -> Values:
    """Run ours once, or both peers one after the other."""
    if trial.side == "ours":
        found = played(trial, "ours", trial.folder)
        return {name: timing for peer in PEERS for name, timing in zip(quantities(peer), found, strict=True)}
    values: dict[str, Sequence[Timing]] = {}
    for contender in ("stock", "torchrun"):
        folder = trial.folder / contender
        folder.mkdir()
        values |= dict(zip(quantities(contender), played(trial, contender, folder), strict=True))
    return values


@dataclass(frozen=True, slots=True)
class Played:
    """A contender's run: the planned events, and all steps. The time begins at ``since``, when all its hosts train."""

    events: Sequence[replay.Event]
    hosts: int
    since: float
    until: float
    stamps: Sequence[Stamp]


def played(trial: Trial, contender: Contender, folder: Path) -> list[list[Timing]]:
    """Return the figures of one contender."""
    run = play_through(trial, contender, folder)
    done = kept_work.work(run.stamps, since=run.since, until=run.until)
    rate = max(done.kept, 1) * BATCH / (run.until - run.since)
    return [[Timing(1000.0 / rate)], [Timing(rate)], [Timing(100.0 * done.lost)]]


def play_through(trial: Trial, contender: Contender, folder: Path) -> Played:
    """Run one contender over the trace."""
    script = [str(SCRIPTS / "spot.py"), contender, str(folder / "stamps"), str(folder / "saved")]
    count = trial.pick(HOSTS, QUICK_HOSTS)
    hosts = list(itertools.islice(names(), 100))
    with running(trial, contender, folder, hosts[:count], script) as job:
        job.settle(count, steps_each=trial.pick(STEPS, QUICK_STEPS), timeout=3 * jobs.START_TIMEOUT_S)
        events = replay.events(hosts=count, lasts_s=LASTS_S, notice_s=NOTICE_S, seed=SEED + trial.number)
        since = time.monotonic()
        play(job, events, hosts, count=count, until=since + trial.pick(LASTS_S, QUICK_S))
        until = time.monotonic()
        return Played(events, count, since, until, list(job.stamps()))


@contextlib.contextmanager
def running(
    trial: Trial, contender: Contender, folder: Path, hosts: Sequence[str], script: Sequence[str]
) -> Iterator[jobs.Job]:
    """Run a contender's job within the context."""
    job = jobs.Job(trial.side, folder)
    job.set_hosts(jobs.lines(hosts))
    try:
        if contender == "torchrun":
            command = [sys.executable, "-m", LAUNCHERS[1], str(job.hosts), str(len(hosts)), *script]
            job.launch(command)
        else:
            job.start(shape(trial, folder, hosts), [sys.executable, *script])
        yield job
    finally:
        job.end()


def shape(trial: Trial, folder: Path, hosts: Sequence[str]) -> jobs.Shape:
    """Return a launcher in a restart loop."""
    durable = ("--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", CHECKPOINT)
    return jobs.Shape(
        hosts=tuple(hosts),
        max_np=len(hosts),
        options=() if trial.side == "ours" else ("--gloo-timeout-seconds", str(GLOO_S)),
        ours=durable,
        within=(sys.executable, "-m", "benchmarks.scripts.restart_loop"),
    )


def play(job: jobs.Job, events: Sequence[replay.Event], hosts: Sequence[str], *, count: int, until: float) -> None:
    """Add and remove hosts, each at its time. The first ``count`` hosts exist from the start."""
    begun, listed = time.monotonic(), list(hosts[:count])
    doing: dict[replay.What, Callable[[str], None]] = {
        "comes": listed.append,
        "told": listed.remove,
        "gone": lambda name: listed.remove(name) if name in listed else None,
    }
    for event in events:
        if begun + event.at_s > until:
            break
        time.sleep(max(0.0, begun + event.at_s - time.monotonic()))
        name = hosts[event.host]
        if event.what == "gone":
            kill(job, name)
        doing[event.what](name)
        job.set_hosts(jobs.lines(listed))
    time.sleep(max(0.0, until - time.monotonic()))


def kill(job: jobs.Job, name: str) -> None:
    """Kill all processes of a host of this job at the same moment."""
    victims: list[psutil.Process] = []
    for process in job.processes():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOROVOD_HOSTNAME") == name:
                victims += [process, *_agents(process)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                os.kill(victim.pid, number)


def _agents(process: psutil.Process) -> list[psutil.Process]:
    """Return our processes between a launcher and a training process."""
    above = process.parents()
    at = next((at for at, each in enumerate(above) if LAUNCHERS[0] in each.cmdline()), 0)
    return above[:at]


TIMES = [Figure(quantities(peer)[0], bar_ratio=1.0) for peer in PEERS]
RATES = [Figure(quantities(peer)[1], unit="samples/s") for peer in PEERS]
LOSSES = [Figure(quantities(peer)[2], unit="%") for peer in PEERS]
CASE: Final = Case(
    name="spot-trace",
    about=f"{HOSTS} spot instances come and go as in a published trace; Horovod and torchrun save every 2 s or so",
    figures=(*TIMES, *RATES, *LOSSES),
    measure=measure,
    repeats=1,
)
