"""A parser whose errors have two lines: what is wrong, with the nearest option, and how to get help."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from hvd_elastic_ext.core.errors import UsageError

MISSING: Final = "the following arguments are required: "
"""The beginning of ``argparse``'s error for missing words."""
NO_NUMBER: Final = re.compile(r"argument (-[^/: ]+)[^:]*: invalid (int|float) value: (.*)", re.DOTALL)
"""Its error for a value that is not a number: the option's first name, the expected type, the value."""
NO_NUMBER_WORD: Final = re.compile(r"argument ([^-:][^:]*): invalid (int|float) value: (.*)", re.DOTALL)
"""The same for a positional argument."""
NO_VALUE: Final = re.compile(r"argument ([^:]*): ignored explicit argument (.*)", re.DOTALL)
"""Its error for a switch with a value."""
NUMBERS: Final[Mapping[str, str]] = {"int": "a whole number, such as {} 2", "float": "a number, such as {} 10"}


class Parser(argparse.ArgumentParser):
    """A parser of ``argparse``, also for subcommands, that raises :class:`UsageError` instead of printing and exiting.

    An unknown option or subcommand is reported before any other error. ``see``: the second line of each error (default:
    how to get the help of this command); "" for none. ``surplus``: what to do about a superfluous word.
    """

    def __init__(self, *args: Any, see: str | None = None, surplus: str = "leave it out", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.see = f"`{self.prog} --help` lists all options" if see is None else see
        self.surplus = surplus

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options and an empty list. Raises :class:`UsageError`, for words that are left over, too."""
        show(self)
        words = list(sys.argv[1:] if args is None else args)
        refuse_unknown(self, words)
        found, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"{left[0]!r} is one word too many; {self.surplus}")
        return found, left

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
    found = NO_NUMBER.fullmatch(message)
    if found is None:
        found = NO_NUMBER_WORD.fullmatch(message)
        if found is None:
            return message
        name, kind, value = found.groups()
        return f"{name} {value}: write {NUMBERS[kind].replace('{} ', '')}"
    option, kind, value = found.groups()
    return f"{option} {value}: write {NUMBERS[kind].format(option)}"


def refuse_unknown(parser: argparse.ArgumentParser, argv: Sequence[str], *, command_follows: bool = False) -> None:
    """Call ``parser.error`` for the first word that looks like an option but is unknown, or is an unknown subcommand.
    ``command_follows``: only words before the first positional word are checked; the rest belongs to that command.
    """
    words, known = list(argv), parser._option_string_actions
    below = _subcommands(parser)
    while words and words[0] != "--":
        word, equals, _ = words.pop(0).partition("=")
        if not word.startswith("-") or word == "-":
            if below and word not in below:
                parser.error(f"there is no command {word!r}; {nearest(word, below)}")
            if below or command_follows:
                return
            continue
        action = _meant(parser, word)
        if action is None and word[:2] in known and not word.startswith("--"):
            continue  # -p2222
        if action is None:
            parser.error(_unknown(parser, word, below))
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            return  # help and version are shown, whatever follows
        _skip_values(words, action, equals)
    if below and not words:
        parser.error(f"which command? There are {', '.join(below)}")


def nearest(word: str, there: Iterable[str]) -> str:
    """Return ``did you mean …?``, or all words that exist if none is near. Pure."""
    known = list(there)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, {})


def _meant(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """Return the option that ``word`` names or, if allowed, abbreviates."""
    known = parser._option_string_actions
    if word in known or not (parser.allow_abbrev and word.startswith("--")):
        return known.get(word)
    return next((known[name] for name in known if name.startswith(word)), None)


def _unknown(parser: argparse.ArgumentParser, word: str, below: Mapping[str, argparse.ArgumentParser]) -> str:
    for name, each in below.items():
        if word in each._option_string_actions:
            return f"{word} comes after the command, as in: {parser.prog} {name} {word}"
    known = [name for each in (parser, *below.values()) for name in each._option_string_actions]
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.0)
    return f"{word} is no option; did you mean {near[0]}?" if near else f"{word} is no option; there are none"


def _skip_values(words: list[str], action: argparse.Action, equals: str) -> None:
    """Remove the values of an option from the words."""
    if action.nargs in ("+", "*", "?"):
        most = 1 if action.nargs == "?" else len(words)
        while words and most and not equals and not words[0].startswith("-"):
            words.pop(0)
            most -= 1
    elif not equals:
        del words[: 1 if action.nargs is None else action.nargs if isinstance(action.nargs, int) else 0]
