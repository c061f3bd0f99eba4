"""The parser of ``run``: our options come first in the help, and an error names the nearest option."""

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
    """The input of a parser. ``add_options`` adds our options; ``layer`` may put further arguments before ``argv``."""

    argv: Sequence[str]
    prog: str
    description: str
    add_options: AddOptions
    layer: Layer


def parser_class(words: ParserInput) -> type[argparse.ArgumentParser]:
    """Return a class whose ``parse_args()`` reads ``words``, whatever arguments the call has.

    Raises :class:`UsageError`, in at most two lines, for arguments that cannot be read.
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
                action.required = False  # a missing argument is reported last
            show(self)
            refuse_unknown(self, words.argv, command_follows=True)
            return super().parse_args(list(words.layer(self, words.argv)))

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{worded(message)}\n{SEE_HELP}")

    return Parser
