"""How a command reads its options: from the command line, the environment and a file; and how it words mistakes.

An error has two lines: what is wrong, with the nearest option, and how to get help. An option is written in full, and
nothing after a program is an option: :func:`split_program` finds the program before ``argparse`` sees a word (its
``REMAINDER`` differs between versions of Python).

:func:`layered_argv` makes one list of words for the parser of a program, the weakest source first, so that one place
defines the type, the checks and the documentation of an option.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, NoReturn

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError

NUMBERS: Final[Mapping[str, str]] = {
    "int": "a whole number, such as {} 2",
    "float": "a number, such as {} 10",
    "time": f"a time, such as {{}} {durations.EXAMPLES}",
}
"""What to write instead of a value that is not a number, by the expected type; ``{}`` stands for the option."""

MISSING: Final = "the following arguments are required: "
"""The beginning of ``argparse``'s error for missing words."""
NO_NUMBER: Final = re.compile(r"argument (-[^/: ]+)[^:]*: invalid (int|float|time) value: (.*)", re.DOTALL)
"""Its error for a value that is not a number: the option's first name, the expected type, the value."""
NO_NUMBER_WORD: Final = re.compile(r"argument ([^-:][^:]*): invalid (int|float|time) value: (.*)", re.DOTALL)
"""The same for a positional argument."""
NO_VALUE: Final = re.compile(r"argument ([^:]*): ignored explicit argument (.*)", re.DOTALL)
"""Its error for a switch with a value."""
TOO_LONG: Final = re.compile(r"argument (-[^/: ]+)[^:]*: (.* is longer than .*)", re.DOTALL)
"""The error for a time that is too long."""
MOST_NAMED: Final = 4
"""An unknown option that begins more options than this is answered with the nearest one only."""

CLOSE: Final = 0.6
"""How similar a name is at least that is offered instead of an unknown one; 1: the same."""


class Parser(argparse.ArgumentParser):
    """A parser of ``argparse``, also for subcommands, that raises :class:`UsageError` instead of printing and exiting.

    Options cannot be abbreviated. An unknown option or subcommand is reported before any other error.

    ``see``: the second line of each error (default:
    how to get the help of this command); "" for none. ``surplus``: what to do about a superfluous word.
    """

    def __init__(self, *args: Any, see: str | None = None, surplus: str = "leave it out", **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        self.see = f"`{self.prog} --help` lists all options" if see is None else see
        self.surplus = surplus
        self.elsewhere: Final[dict[str, str]] = {}
        """What to say about options of other commands, by a pattern of the option."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options and an empty list. Raises :class:`UsageError`, for words that are left over, too."""
        show(self)
        words = list(sys.argv[1:] if args is None else args)
        refuse_unknown(self, words)
        found, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"{left[0]!r} is one word too many; {self.surplus}")
        return found, left

    def format_help(self) -> str:
        """Return the help; where an option takes a time, with a sentence about its form."""
        text = super().format_help()
        return f"{text}\n{durations.FORM}\n" if any(map(takes_time, self._actions)) else text

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`."""
        if message.startswith(MISSING):
            message = f"{message.removeprefix(MISSING)} is missing"
        raise UsageError("\n".join(filter(None, (worded(message), self.see))))


_SHOWS: Final[ContextVar[bool]] = ContextVar("shows", default=False)


class _Shown(BaseException):
    """Passes a parser to :func:`parser_of`. Not an ``Exception``, so that no handler catches it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def show(parser: argparse.ArgumentParser) -> None:
    """Pass a complete parser to :func:`parser_of`. Call it when all options are added, before a word is read."""
    if _SHOWS.get():
        raise _Shown(parser)


def parser_of(command: Callable[[], object]) -> argparse.ArgumentParser:
    """Return the parser that ``command`` makes, without the work of the command. Raises ``LookupError`` without one."""
    token = _SHOWS.set(True)
    try:
        command()
    except _Shown as shown:
        return shown.parser
    finally:
        _SHOWS.reset(token)
    raise LookupError("no parser")


def worded(message: str) -> str:
    """Return ``argparse``'s error; for a value that is not a number, with what to write instead. Pure."""
    found = NO_VALUE.fullmatch(message)
    if found is not None:
        return f"{found[1]} has no value; leave {found[2]} out"
    found = TOO_LONG.fullmatch(message)
    if found is not None:
        return f"{found[1]} {found[2]}"
    found = NO_NUMBER.fullmatch(message)
    if found is None:
        found = NO_NUMBER_WORD.fullmatch(message)
        if found is None:
            return message
        name, kind, value = found.groups()
        return f"{name} {value}: write {NUMBERS[kind].replace('{} ', '')}"
    option, kind, value = found.groups()
    return f"{option} {value}: write {NUMBERS[kind].format(option)}"


def takes_time(action: argparse.Action) -> bool:
    """Whether an option takes a length of time."""
    metavar = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
    words = {word for each in metavar for word in (each or "").split("|")}
    return durations.METAVAR in words and action.help != argparse.SUPPRESS


def refuse_unknown(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Call ``parser.error`` for the first word that looks like an option but is unknown, or is an unknown
    subcommand.
    """
    words, below = list(argv), _subcommands(parser)
    while words and words[0] != "--":
        after = _after_option(parser, words, below)
        if after is None:
            if below and words[0] not in below:
                parser.error(f"there is no command {words[0]!r}; {nearest(words[0], below)}")
            if below:
                return
            after = words[1:]
        elif _shows(parser, words[0]):
            return
        words = after
    if below and not words:
        parser.error(f"which command? There are {', '.join(below)}")


def split_program(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into options and a program with its own words: all from the first word on that is neither an option nor an
    option's value, or all after ``--``. Calls ``parser.error`` for an unknown option before that.
    """
    words = list(argv)
    while words and words[0] != "--":
        after = _after_option(parser, words, {})
        if after is None:
            break
        if _shows(parser, words[0]):
            return list(argv[: len(argv) - len(words) + 1]), []
        words = after
    options = list(argv[: len(argv) - len(words)])
    return options, words[1:] if words[:1] == ["--"] else words


def nearest(word: str, there: Iterable[str]) -> str:
    """Return ``did you mean …?``, or all words that exist if none is near. Pure."""
    known = list(there)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, {})


def _after_option(
    parser: argparse.ArgumentParser, words: Sequence[str], below: Mapping[str, argparse.ArgumentParser]
) -> list[str] | None:
    """Return the words after the option that comes first and its values; None if the first word is not an option."""
    word, equals, _ = words[0].partition("=")
    if not word.startswith("-") or word == "-":
        return None
    for pattern, instead in getattr(parser, "elsewhere", {}).items():
        if re.fullmatch(pattern, word):
            parser.error(f"{word} {instead}")
    action, glued = _meant(parser, word)
    if action is None:
        parser.error(_unknown(parser, word, below))
    left = list(words[1:])
    _skip_values(left, action, equals or glued)
    return left


def _shows(parser: argparse.ArgumentParser, word: str) -> bool:
    """Whether an option shows help or a version, whatever follows it."""
    action = parser._option_string_actions.get(word)
    return isinstance(action, argparse._HelpAction | argparse._VersionAction)


def _meant(parser: argparse.ArgumentParser, word: str) -> tuple[argparse.Action | None, str]:
    """Return the option that ``word`` names, and the value that is glued to it, as in ``-p2222``."""
    known = parser._option_string_actions
    while word not in known and len(word) > 2 and not word.startswith("--"):
        short = known.get(word[:2])
        if short is None:
            break
        if short.nargs != 0:
            return short, word[2:]
        word = f"-{word[2:]}"  # several switches in one word
    return known.get(word), ""


def _unknown(parser: argparse.ArgumentParser, word: str, below: Mapping[str, argparse.ArgumentParser]) -> str:
    for name, each in below.items():
        if word in each._option_string_actions:
            return f"{word} comes after the command, as in: {parser.prog} {name} {word}"
    options = {
        name: option for each in (parser, *below.values()) for name, option in each._option_string_actions.items()
    }
    begun = [name for name, option in options.items() if name.startswith(word) and option.help != argparse.SUPPRESS]
    if word.startswith("--") and 0 < len(begun) <= MOST_NAMED:
        return f"{word} is not an option; did you mean {_either(begun)}?"
    near = _nearest_option(word, options, at_least=0.0 if begun else CLOSE)
    return f"{word} is not an option{f'; did you mean {near}?' if near else ''}"


def _nearest_option(word: str, options: Iterable[str], *, at_least: float) -> str | None:
    """Return the most similar name; None if none is that similar without the dashes, which make all options alike."""

    def alike(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one, other).ratio()

    found = [(alike(name.lstrip("-"), word.lstrip("-")), alike(name, word), name) for name in options]
    ratio, _, name = max(found, default=(-1.0, 0.0, ""))
    return name if ratio >= at_least else None


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _skip_values(words: list[str], action: argparse.Action, equals: str) -> None:
    """Remove the values of an option from the words."""
    if action.nargs in ("+", "*", "?"):
        most = 1 if action.nargs == "?" else len(words)
        while words and most and not equals and not words[0].startswith("-"):
            words.pop(0)
            most -= 1
    elif not equals:
        del words[: 1 if action.nargs is None else action.nargs if isinstance(action.nargs, int) else 0]


# --- environment and file

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
