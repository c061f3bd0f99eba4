"""Finds secrets in URLs and options, which would be visible in `ps`, in the journal and in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

OBSERVE_TOKEN: Final = "HVD_ELASTIC_OBSERVE_TOKEN"  # noqa: S105 - its name
"""The variable with a bearer token for servers of ``--observe``. Other users can read command lines, but not variables.
Only the launcher needs it: no agent and no process of the job gets it.
"""
USER: Final = "a user"
"""Result of :func:`secret_in_url` for a user name without a password."""

_CONTAINERS_AT_ACCOUNTS: Final = frozenset({"abfs", "abfss", "az", "wasb", "wasbs"})
_LINK: Final = re.compile(r"::(?=[\w+.-]*://|/|[\w+.-]+(?:::|$))")
"""The separator of a chain of URLs. A password may contain two colons, too."""
_WORDS: Final = frozenset({"auth", "key", "oauth", "pass", "pwd", "sas", "sig"})
_PARTS: Final = re.compile(
    "secret|passw|passphrase|token|credential|signature|accountkey|accesskey|apikey|privatekey|connectionstring"
    "|authorization|cookie"
)
_HARMLESS: Final = (True, False, None, "", "anon", "browser", "cache", "cloud", "google_default")
"""Values that name the source of a secret, or say that there is none."""

MAX_EXTERNAL_TEXT: Final = 240
"""Most characters kept of another program's message."""
_HIDDEN: Final = "***"
_URL: Final = re.compile(r"([A-Za-z][\w+.-]*://)[^\s\"']+")
_NAMED: Final = re.compile(
    r"""(?<![\w-])([\w-]+)(["']?\s*[=:]\s*)(?:(?:bearer|basic|token)\s+)?(?:"[^"]*"|'[^']*'|[^\s,;&)}\]]+)""", re.I
)
"""A name and its value, as in ``password=x`` and ``"token": "x"``."""
_ERROR: Final = re.compile(r"(?:Error|Exception|Warning|Interrupt)$")


def is_secret_name(name: str) -> bool:
    """Whether the value of this name is likely a secret: ``secret``, ``sas_token``, ``X-Amz-Signature``."""
    word = re.sub("[^a-z0-9]", "", name.lower())
    return word in _WORDS or _PARTS.search(word) is not None


def secret_in_url(url: str) -> str | None:
    """Return which part of ``url``, or of a chain of URLs, is a secret, as text for a message without the secret; None
    if there is none.

    A container at an account (``abfs://container@account.dfs.core.windows.net/x``) is not a secret.
    """
    problem = None
    for part in _LINK.split(url):
        scheme, found, rest = part.partition("://")
        what = _of_authority(scheme.lower(), rest) if found else None
        what = _of_query(part) if what in (None, USER) and _of_query(part) else what
        if what not in (None, USER):
            return what
        problem = problem or what
    return problem


def _of_authority(scheme: str, rest: str) -> str | None:
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user, at, host = authority.rpartition("@")
    if at:
        is_account = scheme in _CONTAINERS_AT_ACCOUNTS and re.fullmatch(r"[\w$-]+@[\w-]+(\.[\w-]+)+(:\d+)?", authority)
        return None if is_account else USER if user and not {":", "@"} & set(user) else "a user or password"
    # A password may contain a slash: then the text before the slash is not a valid host with a port.
    odd = ":" in host and not re.fullmatch(r"[^:]*:\d*|\[[0-9a-fA-F:.%]*\](:\d*)?", host)
    return "a user or password" if odd and "@" in rest else None


def _of_query(part: str) -> str | None:
    words = re.split("[?&;#]", part)[1:]
    names = (unquote(word.partition("=")[0]) for word in words if "=" in word)
    secret = next((name for name in names if is_secret_name(name)), None)
    return None if secret is None else f"a secret ({secret[:40]!r})"


def secret_in_options(options: Mapping[Any, Any]) -> str | None:
    """Return the name of the first option whose value is likely a secret, at any depth; None if there is none."""
    return _of_pairs(options.items())


def _of_pairs(pairs: Iterable[tuple[Any, Any]]) -> str | None:
    for name, value in pairs:
        is_secret = is_secret_name(str(name)) and not any(value is word or value == word for word in _HARMLESS)
        if is_secret or (isinstance(value, str) and secret_in_url(value) not in (None, USER)):
            return str(name)
        inner = _of_pairs(_pairs_in(name, value))
        if inner is not None:
            return inner
    return None


def _pairs_in(name: Any, value: Any) -> list[tuple[Any, Any]]:
    """Yield the values in a value, with their names: those of a dict, or of a list, which may itself be a pair such as
    a header."""
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, list | tuple):
        return []
    pair = [(value[0], value[1])] if len(value) == 2 and isinstance(value[0], str) else []
    return [*pair, *((name, each) for each in value)]


def external_text(text: str) -> str:
    """Return a message of another program, such as ssh or a training script, as one line of at most
    :data:`MAX_EXTERNAL_TEXT` characters, without control characters and likely secrets: for the journal, the saved
    state and the terminal. The end of a long line is cut.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_EXTERNAL_TEXT]).split())
    line = _NAMED.sub(_hide_value, _URL.sub(_hide_in_url, line))
    return line if len(line) <= MAX_EXTERNAL_TEXT else f"{line[: MAX_EXTERNAL_TEXT - 1]}…"


def _hide_in_url(url: re.Match[str]) -> str:
    return url[0] if secret_in_url(url[0]) in (None, USER) else f"{url[1]}{_HIDDEN}"


def _hide_value(pair: re.Match[str]) -> str:
    name = pair[1]
    return pair[0] if _ERROR.search(name) or not is_secret_name(name) else f"{name}{pair[2]}{_HIDDEN}"
