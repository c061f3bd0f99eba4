"""A parser whose errors have two lines: what is wrong, with the nearest option, and how to get help.

An option is written in full, and nothing after a program is an option: :func:`split_program` finds the program before
``argparse`` sees a word (its ``REMAINDER`` differs between versions of Python).
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.options import NUMBERS

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
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.0)
    return f"{word} is not an option; did you mean {near[0]}?" if near else f"{word} is not an option; there are none"


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
