"""Options of ``run`` that a simulation knows, and its own: times, work and prices as ``name=value`` lists."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.launcher.checkpoints.schedule import AUTO, Durability, parse_checkpoint_every, parse_commit_every
from hvd_elastic_ext.launcher.driver.options import JobOptions, ScaleOptions, world_limits
from hvd_elastic_ext.launcher.membership.spares import ON_SURPLUS_HOSTS, parse_spares
from hvd_elastic_ext.launcher.membership.world_change import parse_sizes
from hvd_elastic_ext.launcher.options.settings import RunSettings, Sources
from hvd_elastic_ext.simulate import supply
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.traces.rows import Trace

STORE: Final = "/store"
"""The place of simulated checkpoints."""
NUMBERS: Final = ("failure_budget", "backoff_limit", "num_proc", "min_num_proc", "max_num_proc", "reset_limit")
SECONDS: Final = (
    "settle_s", "standby_timeout_s", "heartbeat_timeout_s", "commit_wait_s", "elastic_timeout_s", "sleep_after_s",
    "max_wait_s", "orphan_grace_s",
)  # fmt: skip
FLAGS: Final = {
    "num_proc": ("-np", "--num-proc"),
    "min_num_proc": ("--min-np", "--min-num-proc"),
    "max_num_proc": ("--max-np", "--max-num-proc"),
    "backoff_limit": ("--job-backoff-limit",),
    "restart_policy": ("--job-restart-policy",),
    "max_wait_s": ("--max-wait-time",),
}
"""Options whose names differ from their fields."""
CHOICES: Final = {"below_min": ("wait", "sleep", "fail"), "restart_policy": ("Never", "OnFailure")}
OWN: Final = ("checkpoint_every", "commit_every", "allowed_sizes", "autoscale", "spares")


def flags_of(field: str) -> tuple[str, ...]:
    """Return the spelling of an option of ``run``."""
    return FLAGS.get(field) or (f"--{field.removesuffix('_s').replace('_', '-')}",)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run`` that the simulation uses, with their defaults."""
    group = parser.add_argument_group("options of run, as the job would have them")
    for name in NUMBERS:
        group.add_argument(*flags_of(name), dest=name, type=int, metavar="N")
    for name in SECONDS:
        group.add_argument(*flags_of(name), dest=name, type=durations.time, metavar=durations.METAVAR)
    for name, choices in CHOICES.items():
        group.add_argument(*flags_of(name), dest=name, choices=choices)
    group.add_argument("--checkpoint-every", metavar=f"auto|N|{durations.METAVAR}|notice")
    group.add_argument("--commit-every", metavar="auto|N")
    group.add_argument("--allowed-sizes", metavar="N,N,…")
    group.add_argument("--spares", metavar="N|N%|auto")
    group.add_argument(
        "--autoscale", metavar="POLICY", help="the job asks for hosts of the trace; see docs/autoscale.md"
    )
    group.add_argument("--restart-from-scratch", action="store_true", default=None)
    group.add_argument("--replay", action="store_true", default=None, help="changes no time: lost steps take as long")


RUN: Final = (*NUMBERS, *SECONDS, *CHOICES, *OWN, "restart_from_scratch", "replay")
"""The options that :func:`settings` reads."""
OF_DECISIONS: Final = frozenset(field.name for field in fields(JobOptions))


def settings(given: Mapping[str, Any], trace: Trace) -> RunSettings:
    """Return the settings that ``run`` makes from these options, for a job on this trace. Raises
    :class:`UsageError`."""
    chosen = {name: value for name, value in given.items() if name in RUN and name not in OWN and value is not None}
    first = sum(row.slots for row in trace.rows if row.event == "up" and row.at == 0.0)
    most = chosen.get("max_num_proc")
    start = chosen.pop("num_proc", None)
    if start is None:
        start = max(1, first if most is None else min(first, most))
    scaling = given.get("autoscale")
    if scaling is not None:
        supply.check(str(scaling))
        chosen.setdefault("max_num_proc", sum(trace.slots.values()))
    sizes = given.get("allowed_sizes")
    commits, ready = given.get("commit_every"), given.get("spares")
    options = JobOptions(
        world_limits(
            start,
            chosen.pop("min_num_proc", start),
            chosen.pop("max_num_proc", None),
            allowed=() if sizes is None else parse_sizes(str(sizes)),
            settle_s=chosen.pop("settle_s", None),
        ),
        spares=ON_SURPLUS_HOSTS if ready is None else parse_spares(str(ready)),
        commit_every=None if commits is None else parse_commit_every(str(commits)),
        durability=_durability(given),
        scaling=None if scaling is None else ScaleOptions(str(scaling), acts=True),
        **{name: chosen.pop(name) for name in OF_DECISIONS & chosen.keys()},
    )
    return RunSettings(("simulated",), Sources(hosts_file=Path("trace")), options, **chosen)


def _durability(given: Mapping[str, Any]) -> Durability | None:
    every = given.get("checkpoint_every")
    if every is None and given.get("below_min") != "sleep":
        return None
    return Durability(STORE, AUTO if every is None else parse_checkpoint_every(str(every)), mark="simulated")


# --- times

NAMES: Final = {field.name.removesuffix("_s"): field.name for field in fields(Times)}
"""Names of the times in ``--times``."""
UNSET: Final = ("every_step", "kinds", "sizes")
PLAIN: Final = ("every", "averages", "spread", "slowed", "bytes")
"""Numbers that are not in seconds."""
BY_KIND: Final = ("step_s", "agent_s", "boot_s")


def pairs(text: str, *, where: str) -> list[tuple[str, str]]:
    """Read ``name=value, name=value``. Raises :class:`UsageError`."""
    found = [part.partition("=") for part in text.replace(";", ",").split(",") if part.strip()]
    wrong = next((name for name, equals, value in found if not (equals and name.strip() and value.strip())), None)
    if wrong is not None:
        raise UsageError(f"{where} {text!r}: {wrong.strip()!r} has no value; write name=value, name=value")
    return [(name.strip(), value.strip()) for name, _, value in found]


def times(text: str | None, before: Times | None = None, *, where: str = "--times") -> Times:
    """Read ``step=1s, boot=45s, a100:step=0.5s``; other times are those of ``before``. Raises :class:`UsageError`."""
    before = before or Times()
    own, sizes = dict[str, float | int](), dict[int, float]()
    kinds = {kind: dict(each) for kind, each in before.kinds.items()}
    for name, value in pairs(text or "", where=where):
        kind, colon, short = name.rpartition(":")
        short, at, size = short.partition("@")
        field = NAMES.get(short)
        if field is None or field in UNSET:
            known = [each for each, field in NAMES.items() if field not in UNSET]
            raise UsageError(f"{where}: there is no time {short!r}; {nearest(short, known)}")
        number = _number(value) if field in PLAIN else durations.parse(value)
        if number is None or (field in ("step_s", "every", "bytes") and number <= 0):
            raise UsageError(f"{where} {name}={value}: write a number{' of seconds' * (field not in PLAIN)}, such as 2")
        if at and (colon or field != "step_s" or not size.isdecimal() or int(size) < 1):
            raise UsageError(f"{where} {name}={value}: only step differs by size of the world, such as step@8=1.2s")
        if colon and field not in BY_KIND:
            names = ", ".join(each.removesuffix("_s") for each in BY_KIND)
            raise UsageError(f"{where} {name}={value}: only {names} may differ by kind of host")
        if at:
            sizes[int(size)] = number
        else:
            (kinds.setdefault(kind, {}) if colon else own)[field] = number
    if not sizes and "step_s" not in own:
        sizes = dict(before.sizes)  # a given step time is valid for all sizes
    for name in ("every", "bytes"):
        if name in own:
            own[name] = max(1, int(own[name]))
    return dataclasses.replace(before, **own, kinds=kinds, sizes=sizes)  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    found = durations.parse(text)
    return found if found is not None and text[-1:].isdigit() else None


def price(text: str | None) -> tuple[float, dict[str, float]]:
    """Read ``0.9`` or ``0.9, a100=2.1``: the price of a slot for an hour, and by kind. Raises :class:`UsageError`."""
    usual, kinds = 0.0, dict[str, float]()
    for part in () if text is None else text.split(","):
        kind, equals, value = part.strip().rpartition("=")
        number = _number(value)
        if number is None or (equals and not kind):
            raise UsageError(f"--price {text!r}: write the price of a slot for an hour, such as 0.9 or 0.9,a100=2.1")
        if equals:
            kinds[kind] = number
        else:
            usual = number
    return usual, kinds
