"""A command line whose mistakes are two lines: the mistake, with the nearest option, and where help is."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """``argparse``'s parser, with short errors. It stands alone: a clone's tools run before anything is installed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options; print what is wrong and exit with 2 for any other word."""
        found, left = self.parse_known_args(args, namespace)
        if left and left[0].startswith("-"):
            word = left[0].partition("=")[0]
            meant = {name: name for name in self._option_string_actions}
            for name, action in self._option_string_actions.items():
                meant |= {f"{name}-{choice}": f"{name} {choice}" for choice in action.choices or ()}
            near = difflib.get_close_matches(word, meant, n=1, cutoff=0.0)[0]
            self.error(f"{word} is not an option; did you mean {meant[near]}?")
        if left:
            self.error(f"{left[0]!r} is one word too many; leave it out")
        return found

    def error(self, message: str) -> NoReturn:
        """Print two lines and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n`{self.prog} --help` lists all options\n")
