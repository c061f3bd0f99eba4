"""How ``run`` reads its words: ours come first in the help, and a mistake is told with the nearest option."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import refuse_unknown, show, worded

AddOptions = Callable[[argparse.ArgumentParser], None]
SEE_HELP: Final = "`hvd-elastic run --help` lists all options; the command comes last: hvd-elastic run -np 2 train.py"

Layer = Callable[[argparse.ArgumentParser, Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ParserInput:
    """What is read, and by whom: ``add_options`` adds our options; ``layer`` may put further words before ``argv``."""

    argv: Sequence[str]
    prog: str
    description: str
    add_options: AddOptions
    layer: Layer


def parser_class(words: ParserInput) -> type[argparse.ArgumentParser]:
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
            show(self)
            refuse_unknown(self, words.argv, command_follows=True)
            return super().parse_args(list(words.layer(self, words.argv)))

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{worded(message)}\n{SEE_HELP}")

    return Parser
