"""What ``--autoscale`` hears from outside: signals, and how many hosts are requested now. No answer is an error of the
job; one that never comes holds up no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from hvd_elastic_ext.core.errors import Transient
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.io.threads.beside import report
from hvd_elastic_ext.launcher.driver import events
from hvd_elastic_ext.launcher.scaling.scalers import Scaler
from hvd_elastic_ext.launcher.scaling.signals import SignalSource, Value

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""Longest wait in seconds for one signal, or for the number of requested hosts: the driver gets the others then."""
T = TypeVar("T")


class Asker:
    """Asks one source in a thread, one call at a time. ``who`` names it in lines."""

    def __init__(self, who: str, *, within_s: float = ANSWER_S) -> None:
        self._who, self._within_s = who, within_s
        self._calls = BackgroundCalls(limit=1)
        self._running = 0
        self._known: set[str] = set()

    async def ask(self, act: Callable[[], T]) -> tuple[T | None, str]:
        """Return what ``act`` returns, and why it returned nothing; never raises what ``act`` raises."""
        if self._running:
            return None, f"{self._who} still does not answer"
        try:
            return await self._calls.call(lambda: self._marked(act), within_s=self._within_s), ""
        except Transient as error:
            return None, str(error)
        except TimeoutError:
            return None, f"{self._who} does not answer within {self._within_s:g} s; it is asked again when it does"
        except OSError as error:  # no thread can be started
            return None, f"{self._who} cannot be asked: {error.strerror}"
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            report(error, self._known, f"{self._who} is left out; the job goes on")
            return None, f"{self._who} is left out ({type(error).__name__})"

    def _marked(self, act: Callable[[], T]) -> T:
        self._running += 1
        try:
            return act()
        finally:
            self._running -= 1


class ScalingInputs:
    """Reads all signals at once, and the scaler's number. ``scaler``: None where sizes are only recommended."""

    def __init__(self, signals: Sequence[SignalSource], scaler: Scaler | None, *, within_s: float = ANSWER_S) -> None:
        self._signals = [(each, Asker(f"--observe {each.name}: {each.where}", within_s=within_s)) for each in signals]
        self._scaler, self._scaler_asker = scaler, Asker("--scale-with", within_s=within_s)
        self._logged: dict[str, str] = {}
        """The last problem of each signal that was logged."""

    @property
    def any(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._signals) or self._scaler is not None

    async def read(self) -> list[events.Event]:
        """Read everything once. Logs a problem of a signal when it begins or changes, and when it is over."""
        found: list[events.Event] = []
        if self._signals:
            answers = await asyncio.gather(*(asker.ask(source.read) for source, asker in self._signals))
            values: dict[str, Value] = {}
            for (source, _), (value, problem) in zip(self._signals, answers, strict=True):
                if value is not None:
                    values[source.name] = value
                self._log(source, problem)
            found.append(events.Observed(values))
        if self._scaler is not None:
            hosts, problem = await self._scaler_asker.ask(self._scaler.asked_for)
            if "does not answer within" in problem:  # others are reported by a request of ours
                log.warning("%s", problem)
            if hosts is not None:
                found.append(events.HostsAskedFor(hosts))
        return found

    def _log(self, source: SignalSource, problem: str) -> None:
        before = self._logged.get(source.name, "")
        if problem and problem != before and not (before and problem.endswith("still does not answer")):
            log.warning("%s; --autoscale goes on without it", problem)
            self._logged[source.name] = problem
        elif not problem and before:
            log.warning("--observe %s: %s gives a signal again", source.name, source.where)
            self._logged[source.name] = ""
