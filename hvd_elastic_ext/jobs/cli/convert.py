"""``hvd-elastic convert``: old manifests, other vendors' manifests and arena's lines, as ours.

``conversion`` has a module for each kind. What it changes is explained in comments above each document, and what has
no equivalent is named there, too.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.io.config_file import MAX_BYTES, documents, to_documents
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.user_files import read_text
from hvd_elastic_ext.jobs.cli.options import add_cluster
from hvd_elastic_ext.jobs.cli.submit_options import add_job
from hvd_elastic_ext.jobs.conversion import arena, hpa, mpijob, pytorchjob
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion, commented, one_line
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER, ROLE_LABEL, WORKER, merged
from hvd_elastic_ext.jobs.spec.words import QUEUE, REFUSED

# --- one document


KINDS: Final = ("MPIJob", "HorizontalPodAutoscaler", "PyTorchJob")
"""Kinds of which a version is converted. Others are printed as they are."""


def convert(body: Body) -> Conversion:
    """Return the converted document; unchanged if no module here handles its kind and version."""
    kind, version = body.get("kind"), str(body.get("apiVersion"))
    if kind == "MPIJob" and version in mpijob.OLD:
        return _labelled(mpijob.convert(body))
    if kind == "HorizontalPodAutoscaler" and version in hpa.OLD:
        return hpa.convert(body)
    if kind == "PyTorchJob" and version != pytorchjob.NEW:
        return _labelled(pytorchjob.convert(body))
    return Conversion(body)


def flattened(documents: list[Body]) -> list[Body]:
    """Return the documents, with each List replaced by its items. Raises ``TypeError`` if these are not a list."""
    flat: list[Body] = []
    for body in documents:
        items = body.get("items") or [] if isinstance(body, dict) and body.get("kind") == "List" else None
        if items is not None and not isinstance(items, list):
            raise TypeError
        flat += [body] if items is None else flattened(items)
    return flat


def _labelled(conversion: Conversion) -> Conversion:
    """Label the pods, which ``hvd-elastic get``, ``logs`` and ``attach`` find by that."""
    name = conversion.get("metadata.name")
    if isinstance(name, str):
        replicas = conversion.get(f"spec.{ROOTS[conversion.get('kind')].roles_at}") or {}
        for role, replica in replicas.items():
            labels = {JOB_LABEL: name, ROLE_LABEL: LAUNCHER if role.lower() == LAUNCHER else WORKER}
            merged(replica.setdefault("template", {}).setdefault("metadata", {}), "labels", labels)
        conversion.changes.append(f"pods have the labels {JOB_LABEL} and {ROLE_LABEL}: hvd-elastic get, logs, attach")
    return conversion


# --- the command


COMMENT: Final = re.compile(r"^[ \t]*#|\s#\s", re.MULTILINE)
MARK: Final = "# NO EQUAL: "
HELM: Final = re.compile(
    r"\{\{-?[ \t]*(?:(?:if|else|end|range|with|define|template|block|include|tpl|toYaml|required|printf)\b|[.$]|/\*)"
    r"|\{\{[^{}\n]*\.(?:Values|Release|Chart|Capabilities|Files)\b"
)
"""The beginning of an action in a template of Helm."""
KNOWN: Final = ", ".join(KINDS)


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
    text, unknown = _converted(_read(options.file), options.file)
    sys.stdout.write(text)
    if unknown:
        kinds = ", ".join(sorted(unknown))
        sys.stderr.write(
            f"{one_line(options.file)}: printed as it is, and not checked: {kinds}; convert knows {KNOWN}\n"
        )
    lost = text.count(MARK)
    if lost:
        sys.stderr.write(
            f"{lost} thing{'s' if lost > 1 else ''} of {options.file} without an equivalent: see {MARK.strip()}\n"
        )
    return 0


def converted(text: str, name: str) -> str:
    """The text of a file, converted. Raises :class:`UsageError`. Pure."""
    return _converted(text, name)[0]


def _converted(text: str, name: str) -> tuple[str, set[str]]:
    """Return the converted text, and the kinds in it of which nothing is known."""
    try:
        return _read_and_converted(text, name)
    except UsageError:
        action = HELM.search(text)
        if action is None:
            raise
        line = text.count("\n", 0, action.start()) + 1
        raise UsageError(
            f"{one_line(name)} is a Helm template (line {line} has {{{{ }}}}), not a manifest; convert what Helm "
            "makes of its chart: helm template NAME CHART | hvd-elastic convert -"
        ) from None


def _read_and_converted(text: str, name: str) -> tuple[str, set[str]]:
    shown = one_line(name)
    if arena.is_script(text):
        return arena.convert(text, known_options(), {**REFUSED, "--queue": QUEUE}), set()
    try:
        bodies = flattened(documents(text, where=shown))
    except TypeError:
        raise UsageError(f"{shown}: the items of a List are not a list") from None
    if not bodies or not all(isinstance(body, dict) and "kind" in body and "apiVersion" in body for body in bodies):
        raise UsageError(f"{shown}: neither a manifest (kind and apiVersion in each document) nor a script of arena")
    try:
        parts = [commented(to_documents([made.body]), made) for made in (_made(body, name) for body in bodies)]
    except RecursionError:
        raise UsageError(f"{shown}: lists are nested too deeply") from None
    start = f"# Comments of {shown} are not in here.\n" if COMMENT.search(text) else ""
    unknown = {one_line(f"{body['kind']} {body['apiVersion']}") for body in bodies if body["kind"] not in KINDS}
    return start + "---\n".join(parts), unknown


def _made(body: Body, name: str) -> Conversion:
    try:
        return convert(body)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        which = f"a field of the {body['kind']} {body['apiVersion']}"
        problem = f"{which} has a value that is not allowed in any version: {error}"
        raise UsageError(one_line(f"{name}: {problem}")) from None


def known_options() -> Mapping[str, bool]:
    """Options of ``submit``, and whether each has a value."""
    parser = argparse.ArgumentParser(add_help=False)
    add_job(parser)
    add_cluster(parser)
    return {name: each.nargs != 0 for each in parser._actions for name in each.option_strings}


def _read(name: str) -> str:
    return read_text(name, expected="give a manifest, or a script that calls arena", most=MAX_BYTES)
