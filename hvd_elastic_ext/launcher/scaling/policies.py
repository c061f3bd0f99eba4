"""Policies of ``--autoscale``, and their text ``POLICY[:key=value,...]``.

A policy returns the size that it wishes for, with a reason; limits are for ``decide``. One that is by signals or by a
budget is here; ``efficiency``, which learns the speed of each size, has a module of its own, since those by a budget
use it too. A new policy is a class with ``wish``, a reader of its keys, and its row in :data:`POLICIES`.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.scaling.curve import BATCHES, GLOBAL, HOST, Curve
from hvd_elastic_ext.launcher.scaling.decide import Policy
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency
from hvd_elastic_ext.launcher.scaling.observations import Observations, Wish

# --- by signals: above its high mark a signal asks for more hosts, below its low mark for fewer


TOLERANCE: Final = 0.1
"""A signal this near to its target, as a share, changes nothing.

The size is that of Kubernetes' HorizontalPodAutoscaler: ``ceil(size * value / target)`` (Kubernetes documentation,
"Horizontal Pod Autoscaling", algorithm details), and so is this tolerance. With two marks the target is the middle
between them, and nothing happens while the value is between them. Of several signals the largest size wins.
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """The marks of one signal."""

    signal: str
    high: float
    """More hosts above it; without ``low`` it is a target."""
    low: float | None = None
    """Fewer hosts below it."""
    total: bool = False
    """The value is of all hosts together, such as the length of a queue, and the marks are for each host."""

    def wish(self, size: int, value: float) -> Wish:
        """Return the size for this signal."""
        each = value / size if self.total else value
        shown = f"{self.signal} is {each:.3g}" + (" a host" if self.total else "")
        if self.low is None:
            if abs(each / self.high - 1.0) <= TOLERANCE:
                return Wish(size, f"{shown}, near its target of {self.high:g}")
            return Wish(_ceil(size * each / self.high), f"{shown}, its target is {self.high:g}")
        if self.low <= each <= self.high:
            return Wish(size, f"{shown}, between {self.low:g} and {self.high:g}")
        wanted = _ceil(size * each / ((self.low + self.high) / 2))
        if each > self.high:
            return Wish(max(wanted, size + 1), f"{shown}, above {self.high:g}")
        return Wish(min(wanted, size), f"{shown}, below {self.low:g}")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The policy: all signals with marks."""

    marks: tuple[Mark, ...]

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the largest size of all signals. While a signal is unknown, no host is given back."""
        known = [mark for mark in self.marks if mark.signal in seen.signals]
        missing = ", ".join(mark.signal for mark in self.marks if mark.signal not in seen.signals)
        if not known:
            return Wish(seen.size, f"no value of {missing} yet")
        wishes = [mark.wish(seen.size, seen.signals[mark.signal]) for mark in known]
        chosen = max(wishes, key=lambda wish: wish.size)
        if missing and chosen.size < seen.size:
            return Wish(seen.size, f"{chosen.reason}; no value of {missing} yet")
        return Wish(max(least, min(most, chosen.size)), chosen.reason)


def _ceil(hosts: float) -> int:
    return max(1, math.ceil(hosts - 1e-9))


# --- by a budget: finish by a time, or spend at most an amount per hour


MARGIN: Final = 0.1
"""Share of the remaining time that is reserved for unforeseen delays."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The fewest hosts that finish in time."""

    by: float
    """When the work is to be done (mono)."""
    work: float
    """All of it, in steps; with a batch for each host, in steps of one host."""
    learn: Efficiency = field(default_factory=Efficiency)
    """Its curve tells the rates, and it makes trials."""

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the next size to ask for."""
        measured = {size: speed for size, speed in seen.speeds.items() if speed.measured}
        if seen.size not in measured:
            return self.learn.wish(now, seen, least, most)
        done = seen.steps if self.learn.batch == GLOBAL else seen.host_steps
        left_s, left = max(0.0, self.by - now), max(0.0, self.work - done)
        if not left:
            return Wish(seen.size, "all of the work is done")
        curve = self.learn.curve(seen, measured)
        reach = min(most, 4 * max(measured))
        sizes = range(least, max(least, reach) + 1)
        enough = [size for size in sizes if curve.rate(size) * left_s * (1 - MARGIN) >= left]
        if not enough:
            fastest = max(sizes, key=lambda size: (curve.rate(size), -size))
            needs = _duration(left / curve.rate(fastest))
            return Wish(
                fastest, f"too late for the deadline: {fastest} hosts need {needs}, {_duration(left_s)} are left"
            )
        size = enough[0]
        needs = _duration(left / curve.rate(size))
        reason = f"{size} hosts need {needs} for the rest, {_duration(left_s)} are left"
        if size < seen.size and self._worth_keeping(curve, size, seen.size):
            return Wish(seen.size, reason)
        return Wish(size, reason, trial=size not in measured)

    def _worth_keeping(self, curve: Curve, fewer: int, size: int) -> bool:
        """Whether the difference is within the error of a median."""
        return size - fewer <= 1 and curve.rate(fewer) > 0 and curve.rate(size) / curve.rate(fewer) < 1 + MARGIN


@dataclass(frozen=True, slots=True)
class Cost:
    """Spend at most an amount per hour."""

    per_hour: float
    price: float | None = None
    """Of a host for an hour, unless prices are observed."""
    learn: Efficiency = field(default_factory=lambda: Efficiency(share=0.0))
    """The policy that decides within the budget."""

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the next size to ask for."""
        price = seen.price if seen.price is not None else self.price
        if not price:
            return Wish(seen.size, "the price of a host is not known")
        affordable = int(self.per_hour / price + 1e-9)
        if affordable < least:
            return Wish(
                least,
                f"{least} hosts cost {least * price:.4g} an hour, more than {self.per_hour:g}; fewer are not allowed",
            )
        prices = sorted(seen.prices) if len(seen.prices) == seen.size else [price] * seen.size
        if sum(prices) > self.per_hour + 1e-9:  # the dearest go
            kept = sum(total <= self.per_hour + 1e-9 for total in itertools.accumulate(prices))
            return Wish(kept, f"{seen.size} hosts cost {sum(prices):.4g} an hour, more than {self.per_hour:g}")
        wish = self.learn.wish(now, seen, least, min(most, affordable))
        return Wish(wish.size, f"{wish.reason}; {self.per_hour:g} an hour pays for {affordable}", wish.trial)


def _duration(seconds: float) -> str:
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.0f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )


# --- as text


TOTALS: Final = ("backlog", "queue")
"""Signals of the whole job, whose marks are per host."""
_SIGNAL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
"""Names allowed by ``state.observe``, ``--observe`` and Prometheus."""
SHARES: Final = ("cpu", "gpu", "memory")
"""Signals between 0 and 1. Other autoscalers use percent."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the text of ``--autoscale`` says."""

    name: str
    policy: Callable[[float], Policy]
    """Makes the policy for a start time (mono), from which deadlines count."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Fields of ``ScaleLimits``."""

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
