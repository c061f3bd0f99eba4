"""A step of a Kubeflow pipeline: submit a job, wait for its end, write its results.

    python -m hvd_elastic_ext.jobs.pipeline --component IMAGE > component.yaml

prints the component, for ``kfp.components.load_component_from_file``. Its container runs this module again.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.config_file import to_documents
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli import submit
from hvd_elastic_ext.jobs.cluster import api, changes, logs
from hvd_elastic_ext.jobs.reading.states import FINISHED, SUCCEEDED
from hvd_elastic_ext.launcher.cli.run_options import split

MODULE: Final = "hvd_elastic_ext.jobs.pipeline"
_WORLD: Final = re.compile(r"hvd-elastic: world \d+: size (?P<size>\d+) ")
_COSTS: Final = re.compile(r"; (?:downtime (?P<downtime>[\d.]+) s|steps lost: (?P<lost>\d+))")


def component(image: str) -> dict[str, Any]:
    """Return the component; its step runs in ``image``. Pure."""
    inputs = ("name", "image", "command", "options")
    about = {"options": "further options of hvd-elastic submit", "command": "as after -- of hvd-elastic submit"}
    outputs = (("metrics", "JsonObject"), ("checkpoint", "String"))
    return {
        "name": "Elastic training",
        "description": "Submits a job with hvd-elastic, and waits for its end.",
        "inputs": [
            {"name": name, "type": "String", "description": about.get(name, f"of the job: {name}")}
            | ({"default": ""} if name == "options" else {})
            for name in inputs
        ],
        "outputs": [{"name": name, "type": kind} for name, kind in outputs],
        "implementation": {
            "container": {
                "image": image,
                "command": ["python", "-m", MODULE],
                "args": [
                    *(word for name in inputs for word in (f"--{name}", {"inputValue": name})),
                    *(word for name, _ in outputs for word in (f"--{name}", {"outputPath": name})),
                ],
            }
        },
    }


def main(argv: Sequence[str], *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Print the component, or run the step: 0 if the job succeeded. Raises :class:`ElasticError`."""
    options = _parser().parse_args(argv)
    if options.component:
        sys.stdout.write(to_documents([component(options.component)]))
        return 0
    kubeconfig = ["--kubeconfig", str(options.kubeconfig)] if options.kubeconfig else []
    words = [options.name, "--image", options.image, *shlex.split(options.options), *kubeconfig]
    began = time.monotonic()
    submit.main([*words, "--", *_command(options.command)])
    cluster = api.found(options.kubeconfig, os.environ)
    state = changes.wait_for(cluster, options.name, FINISHED, sleep=sleep)
    metrics = {"state": state, "seconds": round(time.monotonic() - began, 1), **_worlds(cluster, options.name)}
    for path, text in ((options.metrics, to_text(metrics)), (options.checkpoint, _checkpoints(options.command))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 0 if state == SUCCEEDED else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"python -m {MODULE}", description="A step of a Kubeflow pipeline.")
    parser.add_argument("--component", metavar="IMAGE", help="print the component, with this image")
    for name in ("--name", "--image", "--command", "--options"):
        parser.add_argument(name, default="", help="of the job")
    for name in ("--metrics", "--checkpoint", "--kubeconfig"):
        parser.add_argument(name, type=Path, metavar="FILE", help="where it is written, or read")
    return parser


def _command(line: str) -> list[str]:
    """Return the command in the form of :func:`submit`: a shell line is one word."""
    return [line] if " " in line else line.split()


def _worlds(cluster: api.Cluster, name: str) -> dict[str, float]:
    try:
        return worlds(logs.lines(cluster, name, logs.LogOptions()))
    except ElasticError as error:  # its pods may be gone by now
        sys.stderr.write(f"note: its output cannot be read: {error}\n")
        return {}


def worlds(lines: Iterable[str]) -> dict[str, float]:
    """Return the number of worlds, the last size, and the cost of changes, from the launcher's lines. Pure."""
    totals: dict[str, float] = {"worlds": 0, "size": 0, "downtime_s": 0.0, "steps_lost": 0}
    for line in lines:
        world = _WORLD.match(line)
        if world is None:
            continue
        totals["worlds"] += 1
        totals["size"] = int(world["size"])
        for cost in _COSTS.finditer(line):
            totals["downtime_s"] += float(cost["downtime"] or 0)
            totals["steps_lost"] += int(cost["lost"] or 0)
    return {**totals, "downtime_s": round(totals["downtime_s"], 1)}


def _checkpoints(line: str) -> str:
    """Where the command's launcher puts checkpoints; empty if it names no place."""
    words = shlex.split(line)
    start = 2 if words[:2] == ["hvd-elastic", "run"] else 1 if words[:1] == ["horovodrun"] else None
    options = () if start is None else split(words[start:])[0]
    for number, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name == "--checkpoint-dir":
            return value if equals else options[number + 1]
    return ""


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ElasticError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
