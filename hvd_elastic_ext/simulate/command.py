"""``hvd-elastic simulate``: predicts the training of a job on hosts that come and go, with the launcher's own
decisions."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from hvd_elastic_ext.core import journal as lines
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import finite
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.own_files import open_anew, write_output
from hvd_elastic_ext.io.user_files import read_text
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.report.job_report import build_report
from hvd_elastic_ext.simulate import measured as journals
from hvd_elastic_ext.simulate import options, study, table
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import Result, Work, simulate
from hvd_elastic_ext.simulate.measured import Measured
from hvd_elastic_ext.simulate.study import Study
from hvd_elastic_ext.simulate.traces import files, published, synthetic
from hvd_elastic_ext.simulate.traces.rows import Trace
from hvd_elastic_ext.simulate.versus import Restarted, in_place, restarted

HERE: Final = Path(__file__).parent
SAMPLE: Final = HERE / "sample.csv"
DEMO: Final = HERE / "demo.jsonl"
"""The journal of a demo."""
VERSUS: Final[Mapping[str, Callable[..., Restarted]]] = {"restart": restarted, "stock": in_place}
"""The simulations for `--versus`."""
MAX_SEEDS: Final = 1000
MAX_JOBS: Final = 10_000
MAX_WORK: Final = 10**15
LOOK_S: Final = 1.0
"""Seconds between two looks whether a line about the progress is due."""
A_FILE: Final = "name a file that can be written"
EXAMPLE_NP: Final = 4
"""``--min-np`` of the example: one host of the sample."""
EXAMPLE: Final = """\
An example, as no trace is given: eight spot hosts of four slots come and go for two days ({words}).
Yours: hvd-elastic simulate TRACE.csv --min-np N --times step=0.8s,boot=40s
       with a trace of time,host,event; --synthetic makes one, --from-journal takes a job's; see docs/simulate.md

"""
SEEDS: Final = 10
"""Number of seeds for a recommendation of a random simulation, if none is given."""
DESCRIPTION: Final = """\
Simulate an elastic job over a trace of hosts that come and go: the launcher's own decisions in virtual time.

examples:
  hvd-elastic simulate                                             an example, on a sample trace
  hvd-elastic simulate spot.csv --min-np 4 --checkpoint-every auto
  hvd-elastic simulate --synthetic mtbf=6h,hosts=16,days=7,notice=2m --seeds 10
  hvd-elastic simulate spot.csv --compare 'min_np=2,4,8; checkpoint_every=auto,60s' --seeds 5
  hvd-elastic simulate --from-journal --versus restart             the demo's journal
  hvd-elastic simulate spot.csv --from-journal FILE -np 4 --min-np 1 --autoscale efficiency
"""


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic simulate``."""
    found = Parser(
        prog="hvd-elastic simulate",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("trace", nargs="?", type=Path, help="a trace file of hosts, see docs/simulate.md (a sample)")
    found.add_argument(
        "--assume", metavar="NAME=VALUE,…", help="values that a published trace lacks: notice, untold, slots, hosts, …"
    )
    found.add_argument(
        "--synthetic", metavar="NAME=VALUE,…", help="generate a trace: hosts, days, mtbf, notice, zones, …"
    )
    found.add_argument(
        "--from-journal",
        metavar="FILE",
        type=Path,
        nargs="?",
        const=DEMO,
        help="use times of a real job (a demo), and its hosts unless a trace is given",
    )
    found.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (0)")
    found.add_argument("--seeds", type=int, metavar="N", help="number of simulated jobs, with seeds from --seed on (1)")
    found.add_argument("--times", metavar="NAME=VALUE,…", help="durations, such as step=1s,boot=45s")
    found.add_argument("--work", type=int, metavar="N", help="end training after so many steps of all ranks")
    found.add_argument("--price", metavar="P", help="price of a slot for an hour; by kind: 0.9,a100=2.1")
    found.add_argument(
        "--compare", metavar="GRID", help="compare option values, such as 'min_np=2,4; checkpoint_every=auto,60s'"
    )
    found.add_argument("--recommend", metavar="FILE", help="with --compare: write the best as a --config file of run")
    versus = "compare with a job that restarts from its checkpoint, or with stock Horovod"
    found.add_argument("--versus", choices=tuple(VERSUS), help=versus)
    found.add_argument("--json", action="store_true", help="print all figures as JSON")
    found.add_argument("--journal", metavar="FILE", type=Path, help="write the simulated job's journal, for `events`")
    found.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw the job, like `events --plot`: .svg, .png or .html"
    )
    options.add_run_options(found)
    return found


def main(argv: Sequence[str]) -> int:
    """Simulate, and print. Raises :class:`UsageError`."""
    args = parser().parse_args(argv)
    _check(args)
    if args.trace is None and args.synthetic is None and args.from_journal is None:
        _becomes_example(args, bare=not argv)
    usual, kinds = options.price(args.price)
    given = {name: getattr(args, name) for name in options.RUN if getattr(args, name) is not None}
    measured = None if args.from_journal is None else journals.read(args.from_journal)
    trace = _traces(args, measured)
    times = options.times(args.times, None if measured is None else measured.times)
    seeds = range(args.seed, args.seed + (args.seeds or _seeds(args, trace, times)))
    jobs = len(seeds) * (1 if args.compare is None else len(study.combinations(args.compare)))
    if jobs > MAX_JOBS:
        raise UsageError(f"--compare and --seeds make {jobs:,} jobs; at most {MAX_JOBS:,} are simulated: give fewer")
    progress = _Progress(sys.stderr, jobs)
    found = Study(trace, given, times, seeds, Work(args.work, usual, kinds), progress)
    try:
        if args.compare is not None:
            return _compare(args, found, progress)
        results = [_journalled(args, found)] if args.journal or args.plot else found.results()
        others = [
            VERSUS[args.versus](trace, options.settings(given, trace), times, rank_steps=args.work)
            for trace in map(found.trace, found.seeds if args.versus else ())
        ]
    finally:
        progress.over()
    _tell(args, results, others, measured if args.trace is None and args.synthetic is None else None)
    return 0


def _becomes_example(args: argparse.Namespace, *, bare: bool) -> None:
    """Choose the sample trace, and with it what is not given: without ``--min-np``, its job would end with the first
    host."""
    if args.min_num_proc is None:
        args.min_num_proc = EXAMPLE_NP
    if bare:
        args.checkpoint_every, args.versus = "auto", "stock"
    words = f"--min-np {args.min_num_proc}" + (" --checkpoint-every auto --versus stock" if bare else "")
    (sys.stderr if args.json else sys.stdout).write(EXAMPLE.format(words=words))


class _Progress:
    """Says how far a long simulation is. Each job begins at the start of its trace."""

    def __init__(self, stream: TextIO, jobs: int, mono: Callable[[], float] = time.monotonic) -> None:
        self._line, self._jobs, self._mono = WaitLine(stream, now=mono), jobs, mono
        self._looked_at, self._done, self._share = mono(), 0, 0.0
        self._line.show(self._text())  # the wait begins

    def __call__(self, share: float) -> None:
        """Take the share of the present job that is simulated."""
        self._done += share < self._share
        self._share = share
        now = self._mono()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._line.show(self._text())

    def _text(self) -> str:
        which = f"job {self._done + 1} of {self._jobs}: " if self._jobs > 1 else ""
        return f"hvd-elastic simulate: {which}{100.0 * self._share:.0f} % of the trace is simulated"

    def over(self) -> None:
        """Results follow: remove the line from a terminal."""
        self._line.clear()


def _check(args: argparse.Namespace) -> None:
    if args.seeds is not None and not 1 <= args.seeds <= MAX_SEEDS:
        raise UsageError(f"--seeds is {args.seeds}; give a number from 1 to {MAX_SEEDS:,}")
    if args.work is not None and not 1 <= args.work <= MAX_WORK:
        raise UsageError(
            f"--work is too small or too large; give a number of steps of all ranks from 1 to {MAX_WORK:,}"
        )
    for name in ("journal", "plot"):
        if getattr(args, name) is not None and (args.compare is not None or (args.seeds or 1) > 1):
            raise UsageError(f"--{name} is of one job; leave out --compare and --seeds")
    if args.recommend is not None and args.compare is None:
        raise UsageError("--recommend chooses among the combinations of --compare; name some")
    if args.compare is not None and args.versus is not None:
        raise UsageError("--compare and --versus cannot be combined; leave one out")


def _seeds(args: argparse.Namespace, trace: Callable[[int], Trace], times: Times) -> int:
    """Return the number of seeds: a recommendation must not depend on a single random draw."""
    return SEEDS if args.recommend is not None and Study(trace, {}, times, (args.seed,)).chance else 1


def _tell(
    args: argparse.Namespace, results: Sequence[Result], others: Sequence[Restarted], measured: Measured | None
) -> None:
    if args.json:
        _print(table.as_json(results, others, measured))
        return
    priced = args.price is not None or any(result.cost for result in results)
    sys.stdout.write(table.of_job(results, priced=priced))
    sys.stdout.write("\n" + table.versus(results, others, stock=args.versus == "stock") if others else "")
    sys.stdout.write("\n" + table.beside(results, measured) if measured is not None else "")


def _traces(args: argparse.Namespace, measured: Measured | None) -> Callable[[int], Trace]:
    if args.synthetic is not None and args.trace is not None:
        raise UsageError(f"both {args.trace} and --synthetic are given; leave one out")
    if args.assume is not None and args.trace is None:
        raise UsageError("--assume is about a trace that was published; name its file, or leave it out")
    if args.synthetic is not None:
        return synthetic.parsed(args.synthetic).trace
    if measured is not None and args.trace is None:
        return lambda seed: measured.trace
    return files.read(args.trace or SAMPLE, published.assumptions(args.assume or ""))


def _journalled(args: argparse.Namespace, found: Study) -> Result:
    trace = found.trace(args.seed)
    with contextlib.ExitStack() as stack:
        journal: TextIO = io.StringIO()
        try:
            if args.journal is not None:
                file = open_anew(args.journal, option="--journal")
                journal = stack.enter_context(io.TextIOWrapper(file, encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--journal {args.journal}: {error.strerror}; {A_FILE}") from None
        settings = options.settings(found.given, trace)
        result = simulate(
            trace, settings, found.times, work=found.work, seed=args.seed, journal=journal, watch=found.watch
        )
        if args.plot is not None:
            from hvd_elastic_ext.report.picture import draw

            journal.flush()
            text = journal.getvalue() if isinstance(journal, io.StringIO) else read_text(args.journal, expected=A_FILE)
            draw(build_report(list(lines.read(text.split("\n")))), args.plot, title="Elastic training, simulated")
    return result


def _compare(args: argparse.Namespace, found: Study, progress: _Progress) -> int:
    choices = study.compared(found, study.combinations(args.compare))
    progress.over()
    if not choices[0].results:
        raise UsageError(f"no combination of --compare can be: {choices[0].refused}")
    if args.json:
        _print([table.choice_as_json(each, choices[0]) for each in choices])
    else:
        priced = args.price is not None or any(result.cost for result in choices[0].results)
        sys.stdout.write(table.of_choices(choices, priced=priced, timed=args.work is not None))
    if args.recommend is not None:
        reason = study.reason(choices, chance=found.chance)
        _write(Path(args.recommend), study.config(found.given, choices[0], reason))
        sys.stderr.write(f"{args.recommend}: {reason}\n")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        write_output(path, text, option="--recommend")
    except OSError as error:
        raise UsageError(f"--recommend {path}: {error.strerror}; {A_FILE}") from None


def _print(found: Any) -> None:
    sys.stdout.write(json.dumps(finite(found), indent=2, allow_nan=False) + "\n")
