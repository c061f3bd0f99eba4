"""Horovod's own command-line parser, with our options added to it.

Horovod's parser itself is used, so every option of ``horovodrun`` keeps its meaning.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

from horovod.runner import launch
from horovod.runner.common.util import config_parser, hosts

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import YAMLError
from hvd_elastic_ext.launcher.cli.horovodrun.parser import ParserInput, parser_class


def parse(words: ParserInput) -> argparse.Namespace:
    """Parse by Horovod's parser and ours. Raises :class:`UsageError` for what Horovod's own checks refuse."""
    # parse_args() makes its parser itself and reads sys.argv: both are replaced by name, for this call.
    theirs = launch.argparse
    launch.argparse = SimpleNamespace(**{**vars(argparse), "ArgumentParser": parser_class(words)})
    try:
        args = launch.parse_args()
    except (ValueError, OSError, YAMLError) as error:
        raise UsageError(f"Horovod refuses these options: {error}") from None
    finally:
        launch.argparse = theirs
    assert isinstance(args, argparse.Namespace)
    return args


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
