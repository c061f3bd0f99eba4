"""Reads pip's dry-run report: what pip would download, and whether CUDA packages are among it."""

import json
import re
from dataclasses import dataclass

_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")


@dataclass(frozen=True)
class Plan:
    """What pip would install: (name, version) in alphabetical order."""

    packages: tuple[tuple[str, str], ...]

    @property
    def cuda(self) -> tuple[tuple[str, str], ...]:
        """The packages that only a CUDA build of torch needs."""
        return tuple(package for package in self.packages if _CUDA.fullmatch(package[0].lower()))

    def version_of(self, name: str) -> str | None:
        """Return the planned version of a package."""
        return dict(self.packages).get(name)


def parse_report(text: str) -> Plan:
    """Read the JSON that `pip install --dry-run --report` writes."""
    found = [(entry["metadata"]["name"], entry["metadata"]["version"]) for entry in json.loads(text)["install"]]
    return Plan(tuple(sorted(found, key=lambda package: package[0].lower())))


def describe(plan: Plan, *, own: str) -> str:
    """Describe the download; `own` is the project itself, which is not downloaded."""
    wanted = [f"{name} {version}" for name, version in plan.packages if name != own]
    if not wanted:
        return "Nothing to download: all packages are installed."
    lines = [f"pip will download (or take from its cache) {len(wanted)} packages:", _wrapped(wanted)]
    if plan.cuda:
        lines += ["", _cuda_warning(plan)]
    return "\n".join(lines)


def _cuda_warning(plan: Plan) -> str:
    return "\n".join(
        [
            f"*** ATTENTION: pip chose a CUDA build of torch: {len(plan.cuda)} of these packages are CUDA, several GB.",
            "*** Nothing here needs a GPU. For the small CPU build, stop now (Ctrl-C) and give the URL of PyTorch's",
            "*** CPU index, which pytorch.org shows under Get started (Linux, Pip, CPU):",
            "***     make setup TORCH_INDEX=URL        or        scripts/setup --torch-index URL",
            "*** Continuing with the CUDA build.",
        ]
    )


def _wrapped(words: list[str], width: int = 110) -> str:
    lines, line = [], " "
    for word in words:
        if len(line) + len(word) + 2 > width:
            lines.append(line)
            line = " "
        line += f" {word},"
    return "\n".join([*lines, line.rstrip(",")])
