"""``hvd-elastic simulate``: what a job gets out of hosts that come and go, by the launcher's own decisions."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import finite
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.simulate import measured as journals
from hvd_elastic_ext.simulate import options, study, table
from hvd_elastic_ext.simulate.job import Work, simulate
from hvd_elastic_ext.simulate.measured import Measured
from hvd_elastic_ext.simulate.restart import restarted
from hvd_elastic_ext.simulate.study import Study
from hvd_elastic_ext.simulate.traces import counts, rows, synthetic
from hvd_elastic_ext.simulate.traces.rows import Trace

SAMPLE: Final = Path(__file__).parent / "sample.csv"
DESCRIPTION: Final = """\
Simulate an elastic job over a trace of hosts that come and go: the launcher's own decisions in virtual time.

examples:
  hvd-elastic simulate --min-np 4                                  the sample trace
  hvd-elastic simulate spot.csv --min-np 4 --checkpoint-every auto
  hvd-elastic simulate --synthetic mtbf=6h,hosts=16,days=7,notice=2m --seeds 10
  hvd-elastic simulate spot.csv --compare 'min_np=2,4,8; checkpoint_every=auto,60s' --seeds 5
  hvd-elastic simulate spot.csv --versus restart
"""


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic simulate``."""
    found = Parser(
        prog="hvd-elastic simulate",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("trace", nargs="?", type=Path, help="CSV of time,host,event,notice,slots,kind (a sample)")
    group = found.add_argument_group("a trace that tells only how many hosts there are: time,count")
    group.add_argument("--notice", type=float, default=0.0, metavar="S", help="seconds before a host goes (0)")
    group.add_argument("--untold", type=float, default=0.0, metavar="SHARE", help="share of hosts without notice (0)")
    group.add_argument("--slots", type=int, default=1, metavar="N", help="of each host (1)")
    found.add_argument("--synthetic", metavar="NAME=VALUE,…", help="make a trace: hosts, days, mtbf, notice, zones, …")
    found.add_argument(
        "--from-journal", metavar="FILE", type=Path, help="times of a real job, and its hosts unless a trace is given"
    )
    found.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random (0)")
    found.add_argument("--seeds", type=int, default=1, metavar="N", help="simulate so many jobs, from --seed on (1)")
    found.add_argument("--times", metavar="NAME=VALUE,…", help="how long things take, such as step=1s,boot=45s")
    found.add_argument("--work", type=int, metavar="N", help="training is done after so many steps of all ranks")
    found.add_argument("--price", metavar="P", help="of a slot for an hour; by kind: 0.9,a100=2.1")
    found.add_argument(
        "--compare", metavar="GRID", help="all combinations, such as 'min_np=2,4; checkpoint_every=auto,60s'"
    )
    found.add_argument("--recommend", metavar="FILE", help="with --compare: write the best as a --config file of run")
    found.add_argument("--versus", choices=("restart",), help="compare with a job that restarts from its checkpoint")
    found.add_argument("--json", action="store_true", help="print all figures as JSON")
    found.add_argument("--journal", metavar="FILE", type=Path, help="write the simulated job's journal, for `events`")
    options.add_run_options(found)
    return found


def main(argv: Sequence[str]) -> int:
    """Simulate, and print. Raises :class:`UsageError`."""
    args = parser().parse_args(argv)
    if args.seeds < 1:
        raise UsageError(f"--seeds is {args.seeds}; give a number above 0")
    if args.journal is not None and (args.compare is not None or args.seeds > 1):
        raise UsageError("--journal is of one job; leave out --compare and --seeds")
    if args.recommend is not None and args.compare is None:
        raise UsageError("--recommend chooses among the combinations of --compare; name some")
    usual, kinds = options.price(args.price)
    given = {name: getattr(args, name) for name in options.RUN if getattr(args, name) is not None}
    measured = None if args.from_journal is None else journals.read(args.from_journal)
    found = Study(
        _traces(args, measured),
        given,
        options.times(args.times, None if measured is None else measured.times),
        range(args.seed, args.seed + args.seeds),
        Work(args.work, usual, kinds),
    )
    if args.compare is not None:
        return _compare(args, found)
    results = [_journalled(args, found)] if args.journal is not None else found.results()
    others = [
        restarted(trace, options.settings(given, trace), found.times, rank_steps=args.work)
        for trace in map(found.trace, found.seeds if args.versus else ())
    ]
    if args.json:
        _print(table.as_json(results))
    else:
        sys.stdout.write(table.of_job(results, priced=args.price is not None))
        sys.stdout.write("\n" + table.versus(results, others) if others else "")
        if measured is not None and args.trace is None and args.synthetic is None:
            sys.stdout.write("\n" + table.beside(results, measured))
    return 0


def _traces(args: argparse.Namespace, measured: Measured | None) -> Callable[[int], Trace]:
    if args.synthetic is not None:
        if args.trace is not None:
            raise UsageError(f"both {args.trace} and --synthetic are given; leave one out")
        return synthetic.parsed(args.synthetic).trace
    if measured is not None and args.trace is None:
        trace = measured.trace
    else:
        where = args.trace or SAMPLE
        text = rows.text_of(where)
        if counts.is_counts(text):
            told = {"notice": args.notice, "untold": args.untold, "slots": args.slots}
            return counts.parsed(text, where=str(where), **told).trace
        trace = rows.parsed(text, where=str(where))
    return lambda seed: trace


def _journalled(args: argparse.Namespace, found: Study) -> Any:
    trace = found.trace(args.seed)
    with contextlib.ExitStack() as stack:
        try:
            journal = stack.enter_context(args.journal.open("w", encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--journal {args.journal}: {error.strerror}; name a file that can be written") from None
        settings = options.settings(found.given, trace)
        return simulate(trace, settings, found.times, work=found.work, seed=args.seed, journal=journal)


def _compare(args: argparse.Namespace, found: Study) -> int:
    choices = study.compared(found, study.combinations(args.compare))
    if not choices[0].results:
        raise UsageError(f"no combination of --compare can be: {choices[0].refused}")
    if args.json:
        _print([{"options": dict(each.changed), "refused": each.refused or None, "jobs": table.as_json(each.results)}
                for each in choices])  # fmt: skip
    else:
        sys.stdout.write(table.of_choices(choices, priced=args.price is not None, timed=args.work is not None))
    if args.recommend is not None:
        reason = study.reason(choices)
        _write(Path(args.recommend), study.config(found.given, choices[0], reason))
        sys.stderr.write(f"{args.recommend}: {reason}\n")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--recommend {path}: {error.strerror}; name a file that can be written") from None


def _print(found: object) -> None:
    sys.stdout.write(json.dumps(finite(found), indent=2, allow_nan=False) + "\n")
