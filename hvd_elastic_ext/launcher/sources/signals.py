"""Reads signals for ``--autoscale``: from a file with a number, or by a query of a Prometheus server.

All calls may block: they are for threads, not for the loop.
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from hvd_elastic_ext.core.errors import Transient, UsageError

TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 1 << 20
SYNTAX: Final = "write NAME=file:PATH or NAME=http://HOST/api/v1/query?query=…"


Value = float | dict[str, float]
"""Of the job, or by host."""


class NoSignal(Transient):
    """A signal has no value now; ``str()`` says why, in one line."""


@dataclass(frozen=True, slots=True)
class SignalSource:
    """``name``: of the signal; ``where``: as in ``--observe``; ``text``: reads the text there; ``value``: its value."""

    name: str
    where: str
    text: Callable[[], str]
    value: Callable[[str], Value]

    def read(self) -> Value:
        """Its value now. Raises :class:`NoSignal`."""
        try:
            found = self.value(self.text())
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            raise NoSignal(f"--observe {self.name}: {self.where} cannot be read: {reason}") from None
        except ValueError as error:
            raise NoSignal(f"--observe {self.name}: {self.where} {error}") from None
        for number in found.values() if isinstance(found, dict) else [found]:
            if not math.isfinite(number):
                raise NoSignal(f"--observe {self.name}: {self.where} gives {number}, which is no finite number")
        return found


def sources(texts: Sequence[str]) -> tuple[SignalSource, ...]:
    """Read the values of ``--observe``. Raises :class:`UsageError`."""
    found = tuple(_source(text) for text in texts)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--observe {name} is given twice")
    return found


def _source(text: str) -> SignalSource:
    name, _, where = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) or not where:
        raise UsageError(f"--observe {text!r}: {SYNTAX}")
    if where.startswith("file:") and where != "file:":
        path = Path(where.removeprefix("file:"))
        return SignalSource(name, where, lambda: _of_file(path), _number_or_hosts)
    try:
        url = urlsplit(where)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and not url.password and (url.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"--observe {text!r}: {SYNTAX}; a user or password in it would appear in logs")
    return SignalSource(name, where, lambda: _of_server(where), _prometheus)


def values(each: Sequence[SignalSource]) -> tuple[dict[str, Value], list[str]]:
    """All values that can be read now, by name, and the errors of the others."""
    found: dict[str, Value] = {}
    problems = []
    for source in each:
        try:
            found[source.name] = source.read()
        except NoSignal as error:
            problems.append(str(error))
    return found, problems


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_BYTES).decode("utf-8")


def _of_server(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - http or https, by _source
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return str(answer.read(MAX_BYTES).decode("utf-8"))
    except urllib.error.HTTPError as error:
        raise ValueError(f"answers {error.code} {error.reason}") from None


def _number_or_hosts(text: str) -> Value:
    """A number, or an object with one for each host."""
    if not text.lstrip().startswith("{"):
        return _number(text)
    try:
        return {host: _number(str(value)) for host, value in json.loads(text).items()}
    except json.JSONDecodeError as error:
        raise ValueError(f"holds no JSON: {error}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"holds {text.strip()[:40]!r}, which is no number") from None


def _prometheus(text: str) -> float:
    """The value of an instant query: a scalar, or the one sample of a vector (Prometheus HTTP API, v1)."""
    try:
        answer = json.loads(text)
        data: Mapping[str, object] = answer["data"]
        kind, result = data["resultType"], data["result"]
    except (ValueError, LookupError, TypeError):
        raise ValueError("gives no answer of a Prometheus query") from None
    if kind == "vector" and isinstance(result, list):
        if len(result) != 1:
            raise ValueError(f"gives {len(result)} samples; write a query with one, such as sum(…)")
        result = result[0].get("value") if isinstance(result[0], dict) else None
    if kind not in ("vector", "scalar") or not isinstance(result, list) or len(result) != 2:
        raise ValueError("gives neither a scalar nor a vector")
    return _number(str(result[1]))
