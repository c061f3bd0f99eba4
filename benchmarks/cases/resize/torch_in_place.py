"""``--engine torch`` beside torchft, torchrun, ours under Horovod, and plain DDP: a kill, a newcomer, a step.

torchft is in an environment of its own; ``$HVD_BENCH_TORCHFT`` names the Python there. Its nightly build is the peer:
with 0.2.0 and its own ``DistributedDataParallel`` the survivor of a kill ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Final

from benchmarks import jobs, steps
from benchmarks.cases.resize.growth import DEADLINE_S, JOINED, STALL, figures
from benchmarks.cases.resize.shrink import KILL
from benchmarks.model import Case, Figure, Timing, Trial, Values

TORCHFT: Final = "HVD_BENCH_TORCHFT"
TRAINEE: Final = Path(jobs.TRAINEE).with_name("ddp_trainee.py")
SAVES: Final = TRAINEE.parent / "scripts" / "spot.py"
"""Plain DDP that saves, and starts from what is saved."""
STEPS: Final = (40, 8)
KILL_S: Final = 60.0
UNDER_HOROVOD: Final = "the same under Horovod, ours"
UNDER_TORCHRUN: Final = "the same under torchrun, which starts all processes again"
ADDED: Final = "a step of DDP: what an elastic world adds, median of 30 pairs"
PLAIN: Final = "a step of plain DDP"
BY_TORCHFT: Final = "a step of torchft's DDP"
SILENCE_S: Final = 4
STOPPED: Final = f"SIGSTOP to next step, --heartbeat-timeout {SILENCE_S}"
DIED: Final = "survivor's longest pause as a newcomer dies"
BAR_HOROVOD: Final = 1.2


@cache
def missing() -> str | None:
    """What is missing to run torchft here."""
    python = os.environ.get(TORCHFT)
    how = "pip install torchft-nightly into an environment with this torch, and name its Python"
    if not python:
        return f"needs torchft, and ${TORCHFT} is not set: {how}"
    if subprocess.run([python, "-c", "import torchft"], check=False, capture_output=True).returncode:
        return f"needs torchft, which {python} of ${TORCHFT} cannot import: {how}"
    return None


@contextlib.contextmanager
def peer(trial: Trial, hosts: int, module: str, *arguments: str) -> Iterator[jobs.Job]:
    """A job of torchft: on each host a process of this module."""
    job = jobs.Job(trial.side, trial.folder)
    job.set_hosts(jobs.lines(jobs.HOSTS[:hosts]))
    words = [os.environ[TORCHFT], "-m", "benchmarks.scripts.torchft_hosts", str(job.hosts)]
    try:
        job.launch([*words, f"benchmarks.scripts.{module}", *arguments])
        yield job
    finally:
        job.end()


@contextlib.contextmanager
def under_torchrun(trial: Trial, hosts: int, most: int) -> Iterator[jobs.Job]:
    """A job of torchrun that saves every 40 steps."""
    folder = trial.folder / "torchrun"
    folder.mkdir()
    job = jobs.Job(trial.side, folder)
    job.set_hosts(jobs.lines(jobs.HOSTS[:hosts]))
    words = [sys.executable, "-m", "benchmarks.scripts.torchrun_hosts", str(job.hosts), str(most)]
    try:
        job.launch([*words, str(SAVES), "torchrun", str(job.stamps_file), str(folder / "saved")])
        yield job
    finally:
        job.end()


@contextlib.contextmanager
def in_place(trial: Trial, hosts: int, most: int, *options: str, dies_on: str | None = None) -> Iterator[jobs.Job]:
    """A job of ours with ``--engine torch``; on the host ``dies_on`` processes die while they join others."""
    shape = jobs.Shape(hosts=jobs.HOSTS[:hosts], max_np=most, ours=("--engine", "torch", *options))
    command = [sys.executable, str(TRAINEE), str(trial.folder / "stamps"), f"{jobs.TRAINEE_LIMIT_S:g}"]
    command += [] if dies_on is None else [dies_on]
    with jobs.running(trial, shape, command=command) as job:
        yield job


@contextlib.contextmanager
def under_horovod(trial: Trial, hosts: int, most: int) -> Iterator[jobs.Job]:
    """The same with Horovod."""
    folder = trial.folder / "horovod"
    folder.mkdir()
    there = Trial(trial.side, trial.number, folder, trial.quick)
    with jobs.training(there, jobs.Shape(hosts=jobs.HOSTS[:hosts], max_np=most)) as job:
        yield job


def kill(trial: Trial, job: jobs.Job, size: int, *, anew: bool = False) -> Values:
    """Kill one rank, another one in each repetition. ``anew``: the next step is one of a new process."""
    job.settle(size, steps_each=trial.pick(*STEPS))
    old = {stamp.pid for stamp in job.stamps()}
    lost = job.kill(steps.members(job.stamps())[trial.number % size].pid).mono

    def step() -> float | None:
        wanted = (s for s in job.stamps() if (s.pid not in old if anew else s.size == size - 1))
        return next((s.mono for s in wanted if s.mono > lost), None)

    return {KILL.format(size, size - 1): [job.time_until("the next step", step, since=lost, deadline=KILL_S)]}


def join(trial: Trial, job: jobs.Job, *, anew: bool = False) -> Values:
    """Add a second host. ``anew``: the first one trains on in a new process."""
    job.settle(1, steps_each=trial.pick(*STEPS))
    survivor = steps.members(job.stamps())[0].pid
    jobs.between_polls(job, random.Random(trial.number))
    changed = job.set_hosts(jobs.lines(jobs.HOSTS[:2])).mono
    job.settle(2, steps_each=trial.pick(*STEPS), timeout=DEADLINE_S)
    stamps = job.stamps()
    if not anew:
        return figures(stamps, survivor=survivor, changed=changed)
    last = max(stamp.mono for stamp in stamps if stamp.pid == survivor)
    return {STALL: [Timing(min(stamp.mono for stamp in stamps if stamp.size == 2) - last)]}


def measured(trial: Trial, change: Callable[..., Values], *, hosts: int, most: int) -> Values:
    """The same change with torchft and torchrun, or with ours: under ``--engine torch``, then under Horovod."""
    if trial.side == "stock":
        with peer(trial, hosts, "torchft_trainee", str(trial.folder / "stamps"), f"{jobs.TRAINEE_LIMIT_S:g}") as job:
            found = change(trial, job)
        with under_torchrun(trial, hosts, most) as job:
            torchruns = change(trial, job, anew=True)
        return {**found, UNDER_TORCHRUN: torchruns[next(iter(found))]}
    with in_place(trial, hosts, most) as job:
        ours = change(trial, job)
    with under_horovod(trial, hosts, most) as job:
        horovods = change(trial, job)
    return {**ours, UNDER_HOROVOD: horovods[next(iter(ours))]}


def stopped(trial: Trial) -> Values:
    """Stop one of two ranks: nothing but its silence tells."""
    with in_place(trial, 2, 2, "--heartbeat-timeout", str(SILENCE_S)) as job:
        job.settle(2, steps_each=trial.pick(*STEPS))
        since = time.monotonic()
        os.kill(steps.members(job.stamps())[trial.number % 2].pid, signal.SIGSTOP)

        def step() -> float | None:
            first = steps.first_at(job.stamps(), size=1, after=since + 1)
            return None if first is None else first.mono

        return {STOPPED: [job.time_until("step of a world of 1", step, since=since, deadline=KILL_S)]}


def dies_as_it_joins(trial: Trial) -> Values:
    """A newcomer gives its address, and dies before it connects."""
    with in_place(trial, 1, 2, "--blacklist-cooldown-range", "600", "600", dies_on=jobs.HOSTS[1]) as job:
        job.settle(1, steps_each=trial.pick(*STEPS))
        survivor, changed = steps.members(job.stamps())[0].pid, job.set_hosts(jobs.lines(jobs.HOSTS[:2])).mono
        job.wait_for("the end of the newcomer", lambda: job.records("exited"), timeout=DEADLINE_S)
        done = len(job.stamps())
        job.wait_for("more steps", lambda: len(job.stamps()) > done + STEPS[1], timeout=DEADLINE_S)
        return {DIED: [Timing(steps.stall(job.stamps(), pid=survivor, changed=changed))]}


def steady(trial: Trial) -> Values:
    """Steps of DDP in plain processes, in an elastic world, and with torchft if it is there, in turns on two cores."""
    turns, each = trial.pick((30, 200), (2, 20))
    sides = ["plain", *([] if missing() else ["torchft"]), "elastic"]  # the job of the last one ends with its turns
    script = ["benchmarks.scripts.ddp_turns", str(trial.folder), ",".join(sides)]
    count = [str(turns), str(each)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2"}
    base = jobs.environ(os.environ, trial.folder)
    shape = jobs.Shape(hosts=(f"{jobs.HOSTS[0]}:2",), max_np=2, ours=("--engine", "torch"))
    here = [trial.folder / f"here.{side}.{rank}" for side in sides for rank in (0, 1)]
    with contextlib.ExitStack() as stack:
        for rank in ("0", "1"):
            argv = [sys.executable, "-m", *script, "plain", *count]
            plain = subprocess.Popen(argv, env={**base, **place, "RANK": rank}, stderr=subprocess.DEVNULL)
            stack.enter_context(plain)
            stack.callback(plain.kill)
        command = [sys.executable, "-m", *script, "elastic", *count]
        job = stack.enter_context(jobs.running(trial, shape, command=command))
        if "torchft" in sides:
            (there := trial.folder / "torchft.job").mkdir()
            theirs = Trial(trial.side, trial.number, there, trial.quick)
            stack.enter_context(peer(theirs, 2, "ddp_turns", *script[1:], "torchft", *count))
        ready = lambda: all(path.exists() for path in here)  # noqa: E731
        job.wait_for("all jobs", ready, timeout=jobs.START_TIMEOUT_S)
        (trial.folder / "turn").write_text("0")
        job.wait_for("all turns", lambda: len(_seconds(trial.folder / "elastic")) == turns, timeout=300)
    plain_s, *torchfts, elastic_s = (_seconds(trial.folder / side) for side in sides)
    added = [ours - without for ours, without in zip(elastic_s, plain_s, strict=True)]
    found = {ADDED: added, PLAIN: plain_s, **({BY_TORCHFT: torchfts[0]} if torchfts else {})}
    return {what: [Timing(statistics.median(values))] for what, values in found.items()}


def _seconds(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def kill_case(size: int, repeats: int) -> Case:
    """Return the case of a kill."""
    quantity = KILL.format(size, size - 1)
    return Case(
        name=f"torch-kill-{size}",
        about=f"kill -9 of one of {size} workers under --engine torch; stock is torchft, or torchrun",
        figures=(
            Figure(quantity, bar_ratio=1.0, floor=UNDER_HOROVOD, bar_floor=BAR_HOROVOD),
            Figure(UNDER_HOROVOD, sides=("ours",)),
            Figure(UNDER_TORCHRUN, sides=("stock",)),
        ),
        measure=partial(measured, change=partial(kill, size=size), hosts=size, most=size),
        repeats=repeats,
        missing=missing,
    )


CASES: Final = (
    kill_case(2, repeats=5),
    kill_case(3, repeats=5),
    Case(
        name="torch-join",
        about="a second host comes under --engine torch; stock is torchft, or torchrun",
        figures=(
            Figure(STALL, floor=UNDER_HOROVOD, bar_floor=BAR_HOROVOD),
            Figure(JOINED),
            Figure(UNDER_HOROVOD, sides=("ours",)),
            Figure(UNDER_TORCHRUN, sides=("stock",)),
        ),
        measure=partial(measured, change=join, hosts=1, most=2),
        repeats=5,
        missing=missing,
    ),
    Case(
        name="torch-stop",
        about="SIGSTOP of one of 2 workers under --engine torch",
        figures=(Figure(STOPPED, bar_s=SILENCE_S + 0.3),),
        measure=stopped,
        repeats=3,
        sides=("ours",),
    ),
    Case(
        name="torch-join-dies",
        about="a newcomer under --engine torch dies after it has given its address",
        figures=(Figure(DIED, bar_s=2.0),),
        measure=dies_as_it_joins,
        repeats=3,
        sides=("ours",),
    ),
    Case(
        name="torch-step",
        about="steps of DDP on 2 ranks in turns: plain, and under --engine torch with check_host_updates()",
        figures=(
            Figure(ADDED, bar_s=0.0002),
            Figure(PLAIN),
            *([Figure(BY_TORCHFT)] if os.environ.get(TORCHFT) else []),
        ),
        measure=steady,
        repeats=3,
        sides=("ours",),
    ),
)
