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
from typing import Final, NamedTuple

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError

NUMBERS: Final[Mapping[str, str]] = {
    "int": "a whole number, such as {} 2",
    "float": "a number, such as {} 10",
    "time": f"a time, such as {{}} {durations.EXAMPLES}",
}
"""What to write instead of a value that is not a number, by the expected type; ``{}`` stands for the option."""

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")

_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://.+")


class Layered(NamedTuple):
    """Words for a parser. ``places``: where the values that are not from the command line come from, by the names of
    their options.
    """

    argv: list[str]
    places: Mapping[tuple[str, ...], str]

    def placed(self, error: UsageError) -> UsageError:
        """Return the error, with the place of each value in it that nobody wrote on the command line. Pure."""
        first, *more = str(error).split("\n")
        found = {
            name: place
            for names, place in self.places.items()
            for name in names
            if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", first)
        }
        if found:
            told = dict(zip(found.values(), found, strict=True))  # an option with two names once
            first += f" ({'; '.join(f'{name} comes from {place}' for place, name in told.items())})"
        return UsageError("\n".join((first, *more)))


def layered_argv(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    *,
    config: Mapping[str, object],
    config_name: str,
    environ: Mapping[str, str],
    prefix: str,
    reserved: Iterable[str] = (),
) -> Layered:
    """Return ``argv``, preceded by options from ``environ``, or else from ``config``.

    ``config`` maps option names of more than one letter without dashes (``hosts-file``, ``hosts_file`` or ``np``) to
    values; ``config_name`` names it in errors. Of ``environ``,
    only names that start with ``prefix`` are read. ``reserved`` lists names
    (without prefix) with another meaning. Variables that Kubernetes sets for a
    Service of such a name are skipped.

    Raises :class:`UsageError` for an unknown key, with the nearest known one,
    and for an invalid value of an option.
    """
    options = _long_options(parser)
    chosen: dict[str, list[str]] = {}  # by the option's dest: the stronger layer replaces the weaker
    places: dict[str, tuple[tuple[str, ...], str]] = {}

    def choose(key: str, value: object, *, where: str, prefix: str = "") -> None:
        name, action = _find(options, key, where=where, prefix=prefix)
        chosen[action.dest] = _tokens(options, name, value, where=where)
        places[action.dest] = (tuple(action.option_strings), where)

    for name, value in config.items():
        choose(str(name).replace("_", "-"), value, where=f"{config_name}: {name!r}")
    skip = set(reserved)
    for name in sorted(environ):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and rest not in skip and not is_service_link(rest, environ[name]):
            key = rest.lower().replace("_", "-")
            choose(key, environ[name], where=f"environment variable {name}", prefix=prefix)
    # The flag comes last and replaces other values. An option that appends would take the values of all layers instead.
    given = {token.partition("=")[0] for token in argv}
    for action in parser._actions:
        glued = tuple(string for string in action.option_strings if len(string) == 2)  # as in -p2222
        if action.dest in places and any(each in action.option_strings or each.startswith(glued) for each in given):
            del places[action.dest]
            if isinstance(action, argparse._AppendAction):
                del chosen[action.dest]
    return Layered([*(token for tokens in chosen.values() for token in tokens), *argv], dict(places.values()))


def is_service_link(name: str, value: str) -> bool:
    """Whether a variable is one that Kubernetes sets for a Service: ``X_SERVICE_HOST``, ``X_PORT_80_TCP`` … Pure. For
    ``X_PORT``, which may also be an option, the value ``tcp://address:port`` decides.
    """
    port = name == "PORT" or name.endswith("_PORT")
    return _LINK.fullmatch(name) is not None or (port and _LINKED_PORT.fullmatch(value) is not None)


def _long_options(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.Action]]:
    """Return the options by their names of more than one letter, such as ``num-proc`` and ``np``, each with its name
    that has two dashes."""
    found: dict[str, tuple[str, argparse.Action]] = {}
    for action in parser._actions:
        long = [string[2:] for string in action.option_strings if string.startswith("--")]
        if long and action.dest not in ("help", "config"):
            others = [string[1:] for string in action.option_strings if string[1:2] != "-" and len(string) > 2]
            found |= dict.fromkeys(others, (long[0], action)) | {name: (name, action) for name in long}
    return found


Options = Mapping[str, tuple[str, argparse.Action]]


def _find(options: Options, key: str, *, where: str, prefix: str = "") -> tuple[str, argparse.Action]:
    """Return the option for ``key``. ``prefix``: the prefix of the variable, if ``key`` is from one."""
    if key in options:
        return options[key]
    near = difflib.get_close_matches(key, options, n=1, cutoff=0.0)
    meant = [prefix + name.upper().replace("-", "_") if prefix else repr(name) for name in near]
    hint = f"; did you mean {meant[0]}?" if meant else ""
    raise UsageError(f"{where} is not an option{hint}")


def _tokens(options: Options, key: str, value: object, *, where: str) -> list[str]:
    action = options[key][1]
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return _switch(options, key, value, where=where)
    if value is None or isinstance(value, dict):
        raise UsageError(f"{where} needs a value, not {'nothing' if value is None else 'a table'}")
    if action.nargs in (None, 1):
        if isinstance(value, list) and type(action) is argparse._StoreAction:
            raise UsageError(f"{where} takes one value, not a list")
        values = [str(v) for v in (value if isinstance(value, list) else [value])]
        _check(action, key, values, where=where)
        return [f"--{key}={v}" for v in values]
    values = [str(v) for v in value] if isinstance(value, list) else str(value).split()
    option_like = next((v for v in values if v.startswith("-")), None)
    if option_like is not None:
        raise UsageError(f"{where}: {option_like!r} starts with '-' and would be read as an option")
    if isinstance(action.nargs, int) and len(values) != action.nargs:
        raise UsageError(f"{where} needs {action.nargs} values, not {len(values)}")
    _check(action, key, values, where=where)
    return [f"--{key}", *values]


def _check(action: argparse.Action, key: str, values: Sequence[str], *, where: str) -> None:
    """Raise :class:`UsageError` with the place for a value that the parser would refuse by the option's name."""
    for value in values:
        problem = f"{where} is {value!r}"
        try:
            found = action.type(value) if callable(action.type) else value
        except UsageError as error:
            raise UsageError(f"{where}: {str(error).removeprefix(f'--{key} ')}") from None
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{where}: {error}") from None
        except (TypeError, ValueError):
            kind = getattr(action.type, "__name__", "")
            expected = NUMBERS[kind].replace("{} ", "") if kind in NUMBERS else "another value"
            raise UsageError(f"{problem}; write {expected}") from None
        if action.choices is not None and found not in action.choices:
            raise UsageError(f"{problem}; write {_either([str(each) for each in action.choices])}")


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _switch(options: Options, key: str, value: object, *, where: str) -> list[str]:
    on = str(value).strip().lower()
    if on not in (*_ON, *_OFF):
        raise UsageError(f"{where} is a switch; write true or false, not {value!r}")
    if on in _ON:
        return [f"--{key}"]
    opposite = key.removeprefix("no-") if key.startswith("no-") else f"no-{key}"
    # A switch without an opposite is off unless it is given.
    paired = opposite in options and options[opposite][1].dest == options[key][1].dest
    return [f"--{opposite}"] if paired else []
