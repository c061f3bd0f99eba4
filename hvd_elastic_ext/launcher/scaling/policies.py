"""Parses ``POLICY[:key=value,...]`` of ``--autoscale`` into a policy and its limits."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.scaling.budget import Cost, Deadline
from hvd_elastic_ext.launcher.scaling.curve import BATCHES, HOST
from hvd_elastic_ext.launcher.scaling.decide import Policy
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency
from hvd_elastic_ext.launcher.scaling.threshold import Mark, Threshold

TOTALS: Final = ("backlog", "queue")
"""Signals of the whole job, whose marks are per host."""
_SIGNAL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
"""Names allowed by ``state.observe``, ``--observe`` and Prometheus."""
SHARES: Final = ("cpu", "gpu", "memory")
"""Signals between 0 and 1. Other autoscalers use percent."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """``policy``: makes the policy for a start time (mono), from which deadlines count. ``limits``: fields of
    ``ScaleLimits``."""

    name: str
    policy: Callable[[float], Policy]
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the signals that the policy uses."""
        policy = self.policy(0.0)
        return tuple(mark.signal for mark in policy.marks) if isinstance(policy, Threshold) else ()

    @property
    def batch(self) -> str:
        """Return which batch is constant (:data:`BATCHES`), for a policy that uses the speed of training."""
        policy = self.policy(0.0)
        learn = policy.learn if isinstance(policy, Deadline | Cost) else policy
        return learn.batch if isinstance(learn, Efficiency) else HOST


LIMITS: Final[Mapping[str, str]] = {
    "changes": "changes",
    "up": "up_s",
    "down": "down_s",
    "horizon": "horizon_s",
    "give-up": "give_up_s",
    "retry": "retry_s",
}
"""Keys that each policy takes: fields of ``ScaleLimits``, times but ``changes``."""


def parse(text: str) -> Chosen:
    """Parse the text. Raises :class:`UsageError` that names the error and the nearest valid word."""
    name, _, rest = text.partition(":")
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.0)
        raise UsageError(
            f"--autoscale {text!r}: {name!r} is not one of {', '.join(POLICIES)}; did you mean {near[0]!r}?"
        )
    pairs = _Pairs(text, rest)
    default = {"down_s": 300.0} if name == "threshold" else {"down_s": 0.0}
    given = {LIMITS[key]: value for key in LIMITS if (value := pairs.limit(key)) is not None}
    if not given.get("changes", 0.0).is_integer():
        raise pairs.wrong(f"changes is {given['changes']:g}; write a whole number")
    policy = POLICIES[name](pairs)
    pairs.check_all_taken()
    return Chosen(name, policy, {**default, **given})


class _Pairs:
    def __init__(self, text: str, rest: str) -> None:
        self._text = text
        self._values: dict[str, str] = {}
        self._known: list[str] = []
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if not equals or not key or not value:
                raise self.wrong(f"{pair!r} is not KEY=VALUE")
            if key in self._values:
                raise self.wrong(f"{key} is given twice")
            self._values[key] = value

    def wrong(self, what: str) -> UsageError:
        return UsageError(f"--autoscale {self._text!r}: {what}")

    def take(self, key: str) -> str | None:
        self._known.append(key)
        return self._values.pop(key, None)

    def number(self, key: str, default: float | None, *, least: float, most: float = math.inf) -> float | None:
        text = self.take(key)
        if text is None:
            return default
        value = _number(text)
        if value is None or not least <= value <= most:
            limit = f" from {least:g} to {most:g}" if most < math.inf else f" of at least {least:g}"
            raise self.wrong(f"{key} is {text!r}; write a number{limit}")
        return value

    def limit(self, key: str) -> float | None:
        if not LIMITS[key].endswith("_s"):
            return self.number(key, None, least=0.0)
        text = self.take(key)
        value = None if text is None else durations.parse(text)
        if text is not None and value is None:
            raise self.wrong(f"{key} is {text!r}; write a time, such as {durations.EXAMPLES}")
        return value

    def needed(self, key: str, what: str) -> float:
        value = self.number(key, None, least=0.0)
        if not value:
            raise self.wrong(f"{key} is missing: {what}")
        return value

    def rest(self) -> dict[str, str]:
        values, self._values = self._values, {}
        return values

    def check_all_taken(self) -> None:
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.0)
            raise self.wrong(f"{key!r} is not one of its keys; did you mean {near[0]!r}?")


def _efficiency(pairs: _Pairs, share: float = 0.5) -> Efficiency:
    batch = pairs.take("batch") or HOST
    if batch not in BATCHES:
        raise pairs.wrong(f"batch is {batch!r}; write {' or '.join(BATCHES)}")
    noise = pairs.take("noise") or "off"
    if noise not in ("on", "off"):
        raise pairs.wrong(f"noise is {noise!r}; write on or off")
    chosen = pairs.number("share", share, least=0.0, most=1.0)
    assert chosen is not None
    return Efficiency(chosen, batch, noise == "on")


def _of_efficiency(pairs: _Pairs) -> Callable[[float], Policy]:
    policy = _efficiency(pairs)
    return lambda start: policy


def _of_threshold(pairs: _Pairs) -> Callable[[float], Policy]:
    marks = tuple(_mark(pairs, signal, text) for signal, text in pairs.rest().items())
    if not marks:
        raise pairs.wrong("no signal is given; write such as threshold:cpu=0.4..0.8,queue=100")
    policy = Threshold(marks)
    return lambda start: policy


def _mark(pairs: _Pairs, signal: str, text: str) -> Mark:
    low_text, two, high_text = text.rpartition("..")
    low, high = _number(low_text) if two else None, _number(high_text)
    if high is None or high <= 0 or (two and (low is None or not 0 <= low < high)):
        raise pairs.wrong(f"{signal} is {text!r}; write a target such as 0.8, or two marks such as 0.4..0.8")
    if not _SIGNAL.fullmatch(signal):
        raise pairs.wrong(f"{signal!r} is not the name of a signal; write letters, digits and _")
    if signal in SHARES and high > 1:
        raise pairs.wrong(f"{signal} is {text!r}; write a share from 0 to 1, such as 0.8 for 80 %")
    return Mark(signal, high, low, total=signal in TOTALS)


def _of_deadline(pairs: _Pairs) -> Callable[[float], Policy]:
    hours = pairs.needed("hours", "in how many hours has the work to be done?")
    work = pairs.needed("work", "how much is it, in steps of one host?")
    learn = _efficiency(pairs)
    return lambda start: Deadline(start + hours * 3600.0, work, learn)


def _of_cost(pairs: _Pairs) -> Callable[[float], Policy]:
    per_hour, price = pairs.needed("per-hour", "how much may an hour cost?"), pairs.number("price", None, least=0.0)
    if price == 0:
        raise pairs.wrong("price is 0; write what a host costs for an hour, or leave it out")
    policy = Cost(per_hour, price, _efficiency(pairs, share=0.0))
    return lambda start: policy


POLICIES: Final[Mapping[str, Callable[[_Pairs], Callable[[float], Policy]]]] = {
    "efficiency": _of_efficiency,
    "threshold": _of_threshold,
    "deadline": _of_deadline,
    "cost": _of_cost,
}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
