"""How ``run`` reads its words: ours come first in the help, and a mistake is told with the nearest option."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from hvd_elastic_ext.core.errors import UsageError

AddOptions = Callable[[argparse.ArgumentParser], None]
SEE_HELP: Final = "`hvd-elastic run --help` lists all options; the command comes last: hvd-elastic run -np 2 train.py"

Layer = Callable[[argparse.ArgumentParser, Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Words:
    """What is read, and by whom: ``add_options`` adds our options; ``layer`` may put further words before ``argv``."""

    argv: Sequence[str]
    prog: str
    description: str
    add_options: AddOptions
    layer: Layer


def parser_class(words: Words) -> type[argparse.ArgumentParser]:
    """Return the class with a ``parse_args()`` that reads ``words``, whatever options it was given before.

    Raises :class:`UsageError`, in at most two lines, for what cannot be read.
    """

    class Parser(argparse.ArgumentParser):
        def __init__(self, **kwargs: Any) -> None:
            own = {"prog": words.prog, "description": words.description, "usage": f"{words.prog} [options] command…"}
            super().__init__(**{**kwargs, **own, "formatter_class": argparse.RawDescriptionHelpFormatter})

        def parse_args(self, *_: Any, **__: Any) -> Any:
            theirs = len(self._action_groups)
            words.add_options(self)
            self._action_groups[:] = self._action_groups[theirs:] + self._action_groups[:theirs]  # ours come first
            for action in self._actions:
                action.required = False  # what is missing is found when all else is right
            _demand_known(self, words.argv)
            return super().parse_args(list(words.layer(self, words.argv)))

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}\n{SEE_HELP}")

    return Parser


def _demand_known(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Raise :class:`UsageError` for the first word that looks like an option and is none. The command ends the look."""
    words, known = list(argv), parser._option_string_actions
    while words and words[0] not in ("-", "--") and words[0].startswith("-"):
        word, equals, _ = words.pop(0).partition("=")
        actions = {id(known[name]): known[name] for name in known if name == word} or {
            id(known[name]): known[name] for name in known if word.startswith("--") and name.startswith(word)
        }
        if not actions and word[:2] in known and not word.startswith("--"):
            continue  # -p2222
        if not actions:
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]
            raise UsageError(f"{word} is no option; did you mean {near}?\n{SEE_HELP}")
        nargs = next(iter(actions.values())).nargs
        if nargs in ("+", "*"):
            while words and not words[0].startswith("-"):
                words.pop(0)
        elif not equals:
            del words[: 1 if nargs is None else nargs if isinstance(nargs, int) else 0]
