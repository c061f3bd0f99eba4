"""What ``--autoscale`` hears from outside: the signals of ``--observe``, and how many hosts are requested now.

A signal is a number in a file, or the answer of a Prometheus server. Reading may block, so each source is read in a
thread of its own: one that never answers holds up no other one, and no failure ends the job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from hvd_elastic_ext.core.errors import Transient, UsageError
from hvd_elastic_ext.core.printable import one_line
from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN, secret_in_url
from hvd_elastic_ext.io.http_exchange import NoAnswer, exchange
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.io.threads.beside import report
from hvd_elastic_ext.io.user_files import read_regular
from hvd_elastic_ext.launcher.driver import events
from hvd_elastic_ext.launcher.scaling.scalers import Scaler

log = logging.getLogger(__name__)


TIMEOUT_S: Final = 5.0
"""Longest time in seconds for a whole answer of a server."""
MAX_BYTES: Final = 1 << 20
MAX_HOSTS: Final = 100_000
"""Most hosts in one signal."""
SYNTAX: Final = "write NAME=file:PATH or NAME=http://HOST/api/v1/query?query=…"
Value = float | dict[str, float]
"""Of the job, or by host."""


class NoSignal(Transient):
    """A signal has no value now; ``str()`` says why, in one line."""


@dataclass(frozen=True, slots=True)
class SignalSource:
    """Where one signal is read."""

    name: str
    where: str
    """As in ``--observe``."""
    text: Callable[[], str]
    """Reads the text that is there now."""
    value: Callable[[str], Value]
    """Finds the value in that text."""

    def read(self) -> Value:
        """Its value now. Raises :class:`NoSignal`, whatever the file or server says."""
        try:
            value = self.value(self.text())
        except NoAnswer as error:
            raise NoSignal(f"--observe {self.name}: {self.where} gives no signal: {error}") from None
        except OSError as error:
            reason = error.strerror or error
            raise NoSignal(f"--observe {self.name}: {self.where} cannot be read: {reason}") from None
        except RecursionError:
            raise NoSignal(f"--observe {self.name}: {self.where} holds JSON that is nested too deeply") from None
        except ValueError as error:
            raise NoSignal(f"--observe {self.name}: {self.where} {error}") from None
        for number in value.values() if isinstance(value, dict) else [value]:
            if not math.isfinite(number):
                raise NoSignal(f"--observe {self.name}: {self.where} gives {number}, which is not a finite number")
        return value


def sources(texts: Sequence[str]) -> tuple[SignalSource, ...]:
    """Read the values of ``--observe``. Raises :class:`UsageError`."""
    parsed = tuple(_source(text) for text in texts)
    names = [each.name for each in parsed]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--observe {name} is given twice")
    return parsed


def _source(text: str) -> SignalSource:
    name, _, where = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) or not where:
        raise UsageError(f"--observe {text!r}: {SYNTAX}")
    if where.startswith("file:") and where != "file:":
        path = Path(where.removeprefix("file:"))
        return SignalSource(name, where, lambda: _of_file(path), _number_or_hosts)
    try:
        url = urlsplit(where)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        usable = False
    secret = secret_in_url(where)
    if secret is not None:  # which is not repeated
        raise UsageError(
            f"--observe {name} holds {secret}, which would appear in the log and in `ps`; {SYNTAX}; "
            f"give a token in the variable {OBSERVE_TOKEN}"
        )
    if not usable:
        raise UsageError(f"--observe {text!r}: {SYNTAX}")
    return SignalSource(name, where, lambda: _of_server(where), _prometheus)


def _of_file(path: Path) -> str:
    return read_regular(path, most=MAX_BYTES).decode("utf-8")


def _of_server(url: str) -> str:
    token = os.environ.get(OBSERVE_TOKEN)
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    # A redirect would send the token to a server that the user has not named.
    answer = exchange(url, headers=headers, within_s=TIMEOUT_S, most=MAX_BYTES, redirects=not token)
    if answer.status != 200:
        raise ValueError(f"answers {answer.said}")
    return answer.body.decode("utf-8")


def _number_or_hosts(text: str) -> Value:
    """A number, or an object with one for each host."""
    if not text.lstrip().startswith("{"):
        return _number(text)
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"does not hold JSON: {error}") from None
    if len(values) > MAX_HOSTS:
        raise ValueError(f"names {len(values)} hosts; at most {MAX_HOSTS} are read")
    return {host: _number(str(value)) for host, value in values.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"holds {one_line(text, most=40)!r}, which is not a number") from None


def _prometheus(text: str) -> float:
    """The value of an instant query: a scalar, or the one sample of a vector (Prometheus HTTP API, v1)."""
    try:
        answer = json.loads(text)
        data: Mapping[str, object] = answer["data"]
        kind, result = data["resultType"], data["result"]
    except (ValueError, LookupError, TypeError):
        raise ValueError("does not answer like a Prometheus server") from None
    if kind == "vector" and isinstance(result, list):
        if len(result) != 1:
            raise ValueError(f"gives {len(result)} samples; write a query with one, such as sum(…)")
        result = result[0].get("value") if isinstance(result[0], dict) else None
    if kind not in ("vector", "scalar") or not isinstance(result, list) or len(result) != 2:
        raise ValueError("gives neither a scalar nor a vector")
    return _number(str(result[1]))


# --- each read in a thread

ANSWER_S: Final = 10.0
"""Longest wait in seconds for one signal, or for the number of requested hosts: the driver gets the others then."""
T = TypeVar("T")


class Asker:
    """Asks one source in a thread, one call at a time."""

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
        heard: list[events.Event] = []
        if self._signals:
            answers = await asyncio.gather(*(asker.ask(source.read) for source, asker in self._signals))
            values: dict[str, Value] = {}
            for (source, _), (value, problem) in zip(self._signals, answers, strict=True):
                if value is not None:
                    values[source.name] = value
                self._log(source, problem)
            heard.append(events.Observed(values))
        if self._scaler is not None:
            hosts, problem = await self._scaler_asker.ask(self._scaler.asked_for)
            if "does not answer within" in problem:  # others are reported by a request of ours
                log.warning("%s", problem)
            if hosts is not None:
                heard.append(events.HostsAskedFor(hosts))
        return heard

    def _log(self, source: SignalSource, problem: str) -> None:
        before = self._logged.get(source.name, "")
        if problem and problem != before and not (before and problem.endswith("still does not answer")):
            log.warning("%s; --autoscale goes on without it", problem)
            self._logged[source.name] = problem
        elif not problem and before:
            log.warning("--observe %s: %s gives a signal again", source.name, source.where)
            self._logged[source.name] = ""
