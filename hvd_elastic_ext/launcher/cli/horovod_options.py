"""Horovod's own command-line parser, with our options added to it.

Taking the parser itself, instead of writing its options down again, is what
makes every option of ``horovodrun`` mean here what it means there.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from horovod.runner import launch
from horovod.runner.common.util import config_parser, hosts

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import YAMLError

AddOptions = Callable[[argparse.ArgumentParser], None]
SEE_HELP: Final = "`hvd-elastic run --help` lists all options; the command comes last: hvd-elastic run -np 2 train.py"

Layer = Callable[[argparse.ArgumentParser, Sequence[str]], Sequence[str]]


def parse(
    argv: Sequence[str], *, prog: str, description: str, add_options: AddOptions, layer: Layer
) -> argparse.Namespace:
    """Parse ``argv`` by Horovod's parser and ours.

    ``add_options`` adds ours; ``layer`` may then put further arguments before
    ``argv``. Raises :class:`UsageError` for what Horovod's own checks refuse.
    """

    class Parser(argparse.ArgumentParser):
        def __init__(self, **kwargs: Any) -> None:
            own = {"prog": prog, "description": description, "usage": f"{prog} [options] command…"}
            super().__init__(**{**kwargs, **own, "formatter_class": argparse.RawDescriptionHelpFormatter})

        def parse_args(self, *_: Any, **__: Any) -> Any:
            theirs = len(self._action_groups)
            add_options(self)
            self._action_groups[:] = self._action_groups[theirs:] + self._action_groups[:theirs]  # ours come first
            for action in self._actions:
                action.required = False  # what is missing is found when all else is right
            _demand_known(self, argv)
            return super().parse_args(list(layer(self, argv)))

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}\n{SEE_HELP}")

    # parse_args() makes its parser itself and reads sys.argv: both are replaced by name, for this call.
    theirs = launch.argparse
    launch.argparse = SimpleNamespace(**{**vars(argparse), "ArgumentParser": Parser})
    try:
        args = launch.parse_args()
    except (ValueError, OSError, YAMLError) as error:
        raise UsageError(f"Horovod refuses these options: {error}") from None
    finally:
        launch.argparse = theirs
    assert isinstance(args, argparse.Namespace)
    return args


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


def tuning_env(args: argparse.Namespace) -> dict[str, str]:
    """The environment variables through which Horovod's tuning options reach workers."""
    env: dict[str, str] = {}
    config_parser.set_env_from_args(env, args)
    return env


def read_hostfile(path: str) -> str:
    """Turn an MPI-style host file (``name slots=N`` lines) into ``name:N,…``. Raises :class:`UsageError`."""
    try:
        return str(hosts.parse_host_files(path))
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(f"--hostfile {path}: {error}; write lines of the form 'name slots=N'") from None


def why_not_elastic(args: argparse.Namespace) -> str | None:
    """Say which option cannot be used in an elastic job, and why, or None if all can."""
    if args.use_mpi or args.use_jsrun:
        return "--mpi and --jsrun cannot be elastic: only Horovod's Gloo controller can form a new world"
    if args.autotune:
        return "--autotune cannot be used in an elastic job: Horovod crashes on the first resize with it (horovod#2835)"
    return None
