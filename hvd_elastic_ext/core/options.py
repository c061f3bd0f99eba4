"""Options from a file, the environment and the command line, in that order of weight.

All three become one argument list for the program's own ``argparse`` parser,
weakest first, so that there is one place where an option is typed, checked and
documented.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence

from hvd_elastic_ext.core.errors import UsageError


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
    """Return ``argv`` preceded by the options of ``environ`` and, before them, of ``config``.

    ``config`` maps long option names without dashes (``hosts-file`` or
    ``hosts_file``) to values; ``config_name`` names it in errors. Of ``environ``
    only names starting with ``prefix`` are looked at; ``reserved`` lists names
    (without prefix) that mean something else.

    Raises :class:`UsageError` for an unknown key, naming its nearest neighbour.
    """
    options = _long_options(parser)
    tokens: list[str] = []
    for key, value in config.items():
        tokens += _tokens(options, str(key).replace("_", "-"), value, where=f"{config_name}: {key!r}")
    skip = set(reserved)
    for name in sorted(environ):
        if name.startswith(prefix) and name.removeprefix(prefix) not in skip:
            key = name.removeprefix(prefix).lower().replace("_", "-")
            tokens += _tokens(options, key, environ[name], where=f"environment variable {name}")
    return [*tokens, *argv]


def _long_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {
        string.lstrip("-"): action
        for action in parser._actions
        for string in action.option_strings
        if string.startswith("--") and action.dest not in ("help", "config")
    }


def _tokens(options: Mapping[str, argparse.Action], key: str, value: object, *, where: str) -> list[str]:
    action = options.get(key)
    if action is None:
        near = difflib.get_close_matches(key, options, n=1, cutoff=0.0)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{where} is not an option{hint}")
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return _switch(options, key, value, where=where)
    values = value if isinstance(value, list) else str(value).split() if action.nargs else [value]
    if action.nargs is None or action.nargs == 1:
        return [f"--{key}={v}" for v in values]
    return [f"--{key}", *map(str, values)]


def _switch(options: Mapping[str, argparse.Action], key: str, value: object, *, where: str) -> list[str]:
    on = str(value).strip().lower()
    if on in ("1", "true", "yes", "on"):
        return [f"--{key}"]
    if on in ("0", "false", "no", "off"):
        return [f"--no-{key}"] if f"no-{key}" in options else []
    raise UsageError(f"{where} is a switch; write true or false, not {value!r}")
