"""Options from a file, the environment and the command line. Later ones replace earlier ones.

All three become one argument list for the program's own ``argparse`` parser,
the weakest first, so that one place defines the type, the checks and the
documentation of an option.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from hvd_elastic_ext.core.errors import UsageError

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")

_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://.+")


def layered_argv(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    *,
    config: Mapping[str, object],
    config_name: str,
    environ: Mapping[str, str],
    prefix: str,
    reserved: Iterable[str] = (),
) -> list[str]:
    """Return ``argv``, preceded by options from ``environ``, or else from ``config``.

    ``config`` maps long option names without dashes (``hosts-file`` or
    ``hosts_file``) to values; ``config_name`` names it in errors. Of ``environ``,
    only names that start with ``prefix`` are read. ``reserved`` lists names
    (without prefix) with another meaning. Variables that Kubernetes sets for a
    Service of such a name are skipped.

    Raises :class:`UsageError` for an unknown key, with the nearest known one,
    and for an invalid value of an option.
    """
    options = _long_options(parser)
    chosen: dict[str, list[str]] = {}  # by the option's dest: the stronger layer replaces the weaker
    for name, value in config.items():
        key = str(name).replace("_", "-")
        action = _find(options, key, where=f"{config_name}: {name!r}")
        chosen[action.dest] = _tokens(options, key, value, where=f"{config_name}: {name!r}")
    skip = set(reserved)
    for name in sorted(environ):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and rest not in skip and not is_service_link(rest, environ[name]):
            key, where = rest.lower().replace("_", "-"), f"environment variable {name}"
            action = _find(options, key, where=where, prefix=prefix)
            chosen[action.dest] = _tokens(options, key, environ[name], where=where)
    # The flag comes last and replaces other values. An option that appends would take the values of all layers instead.
    given = {token.partition("=")[0] for token in argv}
    for string, action in options.items():
        if isinstance(action, argparse._AppendAction) and f"--{string}" in given:
            chosen.pop(action.dest, None)
    return [*(token for tokens in chosen.values() for token in tokens), *argv]


def is_service_link(name: str, value: str) -> bool:
    """Whether a variable is one that Kubernetes sets for a Service: ``X_SERVICE_HOST``, ``X_PORT_80_TCP`` … Pure. For
    ``X_PORT``, which may also be an option, the value ``tcp://address:port`` decides.
    """
    port = name == "PORT" or name.endswith("_PORT")
    return _LINK.fullmatch(name) is not None or (port and _LINKED_PORT.fullmatch(value) is not None)


def _long_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {
        string.lstrip("-"): action
        for action in parser._actions
        for string in action.option_strings
        if string.startswith("--") and action.dest not in ("help", "config")
    }


def _find(options: Mapping[str, argparse.Action], key: str, *, where: str, prefix: str = "") -> argparse.Action:
    """Return the option for ``key``. ``prefix``: the prefix of the variable, if ``key`` is from one."""
    if key in options:
        return options[key]
    near = difflib.get_close_matches(key, options, n=1, cutoff=0.0)
    meant = [prefix + name.upper().replace("-", "_") if prefix else repr(name) for name in near]
    hint = f"; did you mean {meant[0]}?" if meant else ""
    raise UsageError(f"{where} is not an option{hint}")


def _tokens(options: Mapping[str, argparse.Action], key: str, value: object, *, where: str) -> list[str]:
    action = options[key]
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return _switch(options, key, value, where=where)
    if value is None or isinstance(value, dict):
        raise UsageError(f"{where} needs a value, not {'nothing' if value is None else 'a table'}")
    if action.nargs in (None, 1):
        if isinstance(value, list) and type(action) is argparse._StoreAction:
            raise UsageError(f"{where} takes one value, not a list")
        return [f"--{key}={v}" for v in (value if isinstance(value, list) else [value])]
    values = [str(v) for v in value] if isinstance(value, list) else str(value).split()
    option_like = next((v for v in values if v.startswith("-")), None)
    if option_like is not None:
        raise UsageError(f"{where}: {option_like!r} starts with '-' and would be read as an option")
    return [f"--{key}", *values]


def _switch(options: Mapping[str, argparse.Action], key: str, value: object, *, where: str) -> list[str]:
    on = str(value).strip().lower()
    if on not in (*_ON, *_OFF):
        raise UsageError(f"{where} is a switch; write true or false, not {value!r}")
    if on in _ON:
        return [f"--{key}"]
    opposite = key.removeprefix("no-") if key.startswith("no-") else f"no-{key}"
    # A switch without an opposite is off unless it is given.
    paired = opposite in options and options[opposite].dest == options[key].dest
    return [f"--{opposite}"] if paired else []
