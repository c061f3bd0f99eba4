"""Reads signals for ``--autoscale``: from a file with a number, or by a query of a Prometheus server.

All calls may block: they are for threads, not for the loop.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from hvd_elastic_ext.core.errors import Transient, UsageError
from hvd_elastic_ext.core.printable import one_line
from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN, secret_in_url
from hvd_elastic_ext.io.http_exchange import NoAnswer, exchange
from hvd_elastic_ext.io.user_files import read_regular

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
    """Where a signal comes from."""

    name: str
    """That of the signal."""
    where: str
    """As in ``--observe``."""
    text: Callable[[], str]
    """Reads the text there."""
    value: Callable[[str], Value]
    """The value in the text."""

    def read(self) -> Value:
        """Its value now. Raises :class:`NoSignal`, whatever the file or server says."""
        try:
            found = self.value(self.text())
        except NoAnswer as error:
            raise NoSignal(f"--observe {self.name}: {self.where} gives no signal: {error}") from None
        except OSError as error:
            reason = error.strerror or error
            raise NoSignal(f"--observe {self.name}: {self.where} cannot be read: {reason}") from None
        except RecursionError:
            raise NoSignal(f"--observe {self.name}: {self.where} holds JSON that is nested too deeply") from None
        except ValueError as error:
            raise NoSignal(f"--observe {self.name}: {self.where} {error}") from None
        for number in found.values() if isinstance(found, dict) else [found]:
            if not math.isfinite(number):
                raise NoSignal(f"--observe {self.name}: {self.where} gives {number}, which is not a finite number")
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
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"does not hold JSON: {error}") from None
    if len(found) > MAX_HOSTS:
        raise ValueError(f"names {len(found)} hosts; at most {MAX_HOSTS} are read")
    return {host: _number(str(value)) for host, value in found.items()}


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
        raise ValueError("does not give the answer of a Prometheus query") from None
    if kind == "vector" and isinstance(result, list):
        if len(result) != 1:
            raise ValueError(f"gives {len(result)} samples; write a query with one, such as sum(…)")
        result = result[0].get("value") if isinstance(result[0], dict) else None
    if kind not in ("vector", "scalar") or not isinstance(result, list) or len(result) != 2:
        raise ValueError("gives neither a scalar nor a vector")
    return _number(str(result[1]))
