"""Which requests may read the page's data, and what the page itself may load. Pure.

The page is reached by a browser, in which other pages run, too. So a request needs the token, which no other page has,
and must name this machine in ``Host``: a name from an attacker's DNS is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Final

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
FOREVER: Final = "public, max-age=31536000, immutable"
"""How long a browser may cache a file of a library. Its address contains the version."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; style-src-attr 'none'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser lets the page load: its own files, and nothing from elsewhere.

Bokeh adds style elements with computed text to the charts, so 'unsafe-inline' is needed. Style attributes in markup
stay forbidden. No script is made from text.
"""
LOCAL: Final = frozenset({"localhost", "ip6-localhost"})
_SCHEME: Final = "bearer "
_HOST: Final = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(:\d*)?", re.ASCII)
"""It matches the whole header: a library may take the text after the name as a part of the path."""


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def has_token(token: str, header: str | None) -> bool:
    """Whether an ``Authorization`` header contains the token. Takes the same time wherever the two differ."""
    given = header or ""
    word = given[len(_SCHEME) :].strip() if given.lower().startswith(_SCHEME) else ""
    return hmac.compare_digest(word.encode("utf-8", "surrogateescape"), token.encode())


def is_named(host: str | None, names: Collection[str]) -> bool:
    """Whether a ``Host`` header names this server: by any address, which needs no DNS, or by one of the ``names``."""
    match = _HOST.fullmatch(host or "")
    if match is None:
        return False
    name = (match["address"] or match["name"]).lower().rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in LOCAL or name in {each.lower().rstrip(".") for each in names}
    return True


def is_same_origin(origin: str | None, host: str | None) -> bool:
    """Whether a request comes from the page itself, or from a program that names no origin."""
    return origin is None or origin.partition("://")[2].lower() == (host or "").lower()


def policy_of_file(*, scripts: Collection[str]) -> str:
    """The policy of a page in one file: these scripts, nothing else, and no connection at all."""
    own = " ".join(f"'{_hash(script)}'" for script in scripts)
    style = "style-src 'unsafe-inline'; style-src-attr 'none'"
    return f"default-src 'none'; script-src {own}; {style}; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
