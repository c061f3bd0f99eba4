"""``hvd-elastic demo``: a real elastic job on this machine.

It runs a scenario on the job, shows it as it goes, and checks that every event had its effect: the demo is also a test
of the product as a user installs it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TextIO

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import Interrupted, Permanent
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import render_hosts_text
from hvd_elastic_ext.demo import page
from hvd_elastic_ext.demo.job import (
    Folder,
    Job,
    Training,
    check_installed,
    job_environ,
    run_command,
    sizing_options,
)
from hvd_elastic_ext.demo.runner import JournalTail, Outcome, ScenarioRunner
from hvd_elastic_ext.demo.scenario import ALL, START, Event, full_scenario, quick_scenario, sizing_scenario
from hvd_elastic_ext.demo.view import LiveView, PlainView
from hvd_elastic_ext.install import files
from hvd_elastic_ext.io import process_tree
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.report.command import read_journal
from hvd_elastic_ext.report.job_report import build_report
from hvd_elastic_ext.report.picture import draw
from hvd_elastic_ext.report.table import show

LEAST_ACCURACY: Final = 0.96
COOLDOWN_S: Final = (3, 10)
FULL: Final = Training(epochs=20, step_delays_s=(0.3,))
QUICK: Final = Training(epochs=12, step_delays_s=(0.3,))
"""Slow enough to outlast the scenario on a busy machine, and long enough to learn the digits. After the last event the
delays end.
"""
SIZED: Final = Training(epochs=12, step_delays_s=(0.6, 0.384, 0.368))
"""``0.6 / n + 0.084 * (n - 1)``: from the steps of two hosts, a third one seems worth it, and is not. A busy machine,
on which every process makes steps longer, changes neither.
"""
EVENTS, SIZES_PART = "events", "sizes"
PARTS: Final = (EVENTS, SIZES_PART)


@dataclass(frozen=True, slots=True)
class Plan:
    """One job of the demo."""

    training: Training
    scenario: tuple[Event, ...]
    least_accuracy: float = LEAST_ACCURACY
    """Required of the training."""
    start: tuple[str, ...] = START
    """Its first hosts."""
    offered: tuple[str, ...] = ()
    """The hosts that it can get, if it chooses their number."""
    title: str = "Handwritten digits on hosts that come and go"


def plan_of(*, quick: bool, seed: int) -> Plan:
    """The events of the full demo, or each kind of event once."""
    training = replace(QUICK if quick else FULL, seed=seed)
    make = quick_scenario if quick else full_scenario
    return Plan(training, make(commit_every=training.commit_every))


def sizing_plan(*, seed: int) -> Plan:
    """A job that chooses its number of hosts."""
    return Plan(
        replace(SIZED, seed=seed),
        sizing_scenario(),
        start=ALL[:1],
        offered=ALL,
        title="Handwritten digits on the best number of hosts",
    )


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic demo``."""
    options = Parser(
        prog="hvd-elastic demo",
        description="Train a small network on handwritten digits while hosts come, crash, are taken away and return.",
    )
    options.add_argument("--out", metavar="DIR", type=Path, default=Path("demo-out"), help="default: ./demo-out")
    options.add_argument("--seed", metavar="N", type=int, default=42, help="seed of the training (42)")
    options.add_argument("--plain", action="store_true", help="print a line for each change instead of a live panel")
    options.add_argument("--quick", action="store_true", help="run each kind of event once")
    options.add_argument(
        "--part", choices=PARTS, help="only the events, or only a job that chooses its number of hosts (both)"
    )
    return options


def main(argv: Sequence[str]) -> int:
    """Run the demo; return 0 if every event has its effect, else 1, or 128 + signal if stopped."""
    options = parser().parse_args(argv)
    if os.environ.get("HVD_DIE_WITH_PARENT") == "1":
        process_tree.die_with_parent(signal.SIGTERM)  # a killed ``make`` ends the demo
    check_installed()
    plain = options.plain or not sys.stdout.isatty()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    with contextlib.ExitStack() as folders:
        folder = folders.enter_context(Folder(options.out))
        plans = {folder: plan_of(quick=options.quick, seed=options.seed)} if options.part != SIZES_PART else {}
        if options.part != EVENTS:
            plans[folders.enter_context(Folder(folder.path / SIZES_PART))] = sizing_plan(seed=options.seed)
        return max([run_demo(plan, each, stream=sys.stdout, plain=plain) for each, plan in plans.items()])


def run_demo(plan: Plan, folder: Folder, *, stream: TextIO, plain: bool) -> int:
    """Run one plan in a folder and report the result."""
    with stop_signals() as stop:
        with page.served(folder, stream, job_environ(os.environ, temporary=folder.temporary)):
            outcome = _run_scenario(plan, folder, stop=stop, view=PlainView(stream) if plain else LiveView(stream))
        stop.check("the demo was told to stop; the job has been ended")
        failures = [*outcome.failures, *_shortcomings(plan, folder, outcome)]
        if folder.journal.exists() and folder.journal.stat().st_size:
            show_results(folder, stream, title=plan.title)
            failures += _export_page(folder, stream)
    for failure in failures:
        sys.stderr.write(f"hvd-elastic demo: FAILED: {failure}\n")
    return 1 if failures else 0


def _run_scenario(plan: Plan, folder: Folder, *, stop: StopSignals, view: PlainView | LiveView) -> Outcome:
    script = files.find("examples/01-digits/train.py")
    folder.publish(render_hosts_text(HostSet.of(dict.fromkeys(plan.start, 1))))
    environ = job_environ(os.environ, temporary=folder.temporary)
    more = sizing_options(folder, plan.offered) if plan.offered else ()
    command = run_command(folder, cooldown_s=COOLDOWN_S, size=(len(plan.start), len(ALL)), more=more)
    job = Job(folder, [*command, *plan.training.command(script, folder.report, hurry=folder.fast)], environ)
    try:
        with view as watch:
            tail = JournalTail(folder.journal)
            runner = ScenarioRunner(plan.scenario, tail.read, control=job, clock=SystemClock(), watch=watch)
            return runner.run(stop.received)
    finally:
        job.end()


def _shortcomings(plan: Plan, folder: Folder, outcome: Outcome) -> list[str]:
    """Check the end of the job, unless an event failed before."""
    if outcome.code is None:
        return []
    if outcome.code != 0:
        return [f"the job ended with exit code {outcome.code}; see {folder.log}"]
    accuracy = folder.accuracy()
    if accuracy is None:
        return [f"training reported no accuracy in {folder.report}; see {folder.log}"]
    if accuracy < plan.least_accuracy:
        return [f"test accuracy is {accuracy:.4f}; at least {plan.least_accuracy} was expected"]
    return []


def show_results(folder: Folder, stream: TextIO, *, title: str) -> None:
    """Show the table, the accuracy and the picture, also of a job that did not reach its end."""
    records, _ = read_journal(folder.journal)
    report = build_report(records)
    show(report, stream)
    # Matplotlib caches fonts in the user's home; the demo writes only into its folder.
    os.environ.setdefault("MPLCONFIGDIR", str(folder.path / ".matplotlib"))
    for picture in (folder.png, folder.html):
        draw(report, picture, title=title)
    accuracy = folder.accuracy()
    if accuracy is not None:
        stream.write(f"Test accuracy: {accuracy:.4f}\n")
    stream.write(f"Picture: {folder.png}\n         {folder.html}\n")
    stream.flush()


def _export_page(folder: Folder, stream: TextIO) -> list[str]:
    try:
        page.export(folder)
    except Permanent as error:
        return [str(error)]
    stream.write(f"Page:    {folder.page}\n")
    stream.flush()
    return []


class StopSignals:
    """Remembers the first stop signal. A handler must do no more: locks can deadlock there."""

    def __init__(self) -> None:
        self.number = 0

    def note(self, number: int, _frame: object) -> None:
        """The signal handler: keep the number of the first signal."""
        self.number = self.number or number

    def received(self) -> bool:
        """Whether a signal has come."""
        return self.number != 0

    def check(self, why: str) -> None:
        """Raise :class:`Interrupted` after a signal."""
        if self.number:
            raise Interrupted(self.number, why)


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Catch SIGINT, SIGTERM and, except under ``nohup``, SIGHUP; restore the handlers at the end."""
    stop = StopSignals()
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    before = {number: signal.signal(number, stop.note) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
