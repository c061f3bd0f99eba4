"""``hvd-elastic convert``: old manifests, other vendors' manifests and arena's lines, as ours."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import documents, to_documents
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster
from hvd_elastic_ext.jobs.cli.submit_options import add_job
from hvd_elastic_ext.jobs.conversion import arena
from hvd_elastic_ext.jobs.conversion.convert import convert, flattened
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion, commented
from hvd_elastic_ext.jobs.spec.arena import QUEUE, REFUSED

COMMENT: Final = re.compile(r"^\s*#|\s#\s", re.MULTILINE)
MARK: Final = "# NO EQUAL: "


def main(argv: Sequence[str]) -> int:
    """Print the converted file. Raises :class:`UsageError` for a file that is neither YAML nor a script that calls
    arena."""
    parser = Parser(
        prog="hvd-elastic convert",
        description="Print old manifests as those of today: MPIJob v1alpha1, v1alpha2, v1; HorizontalPodAutoscaler "
        "v2beta1, v2beta2; PyTorchJob of other groups; and lines of arena as ours. Comments say what changed, and why.",
    )
    parser.add_argument("file", metavar="FILE", help="a manifest, or a script that calls arena; - reads from stdin")
    options = parser.parse_args(argv)
    text = converted(_read(options.file), options.file)
    sys.stdout.write(text)
    lost = text.count(MARK)
    if lost:
        sys.stderr.write(
            f"{lost} thing{'s' if lost > 1 else ''} of {options.file} without an equal: see {MARK.strip()}\n"
        )
    return 0


def converted(text: str, name: str) -> str:
    """The text of a file, converted. Raises :class:`UsageError`. Pure."""
    if arena.is_script(text):
        return arena.convert(text, known_options(), {**REFUSED, "--queue": QUEUE})
    bodies = flattened(documents(text, where=name))
    if not bodies or not all(isinstance(body, dict) and "kind" in body and "apiVersion" in body for body in bodies):
        raise UsageError(f"{name}: neither a manifest (kind and apiVersion in each document) nor a script of arena")
    try:
        parts = [commented(to_documents([made.body]), made) for made in (_made(body, name) for body in bodies)]
    except RecursionError:
        raise UsageError(f"{name}: an alias stands for what it is in, or lists are too deep") from None
    start = f"# Comments of {name} are not in here.\n" if COMMENT.search(text) else ""
    return start + "---\n".join(parts)


def _made(body: Body, name: str) -> Conversion:
    try:
        return convert(body)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{body['kind']} {body['apiVersion']}"
        raise UsageError(f"{name}: a field of the {what} has a value that no version of it allows: {error}") from None


def known_options() -> Mapping[str, bool]:
    """Options of ``submit``, and whether each has a value."""
    parser = argparse.ArgumentParser(add_help=False)
    add_job(parser)
    add_cluster(parser)
    return {name: each.nargs != 0 for each in parser._actions for name in each.option_strings}


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no text") from None
