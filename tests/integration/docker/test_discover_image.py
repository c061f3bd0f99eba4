"""The daemon's image, made as its Dockerfile says, but for the container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dockerfiles import ROOT, stages

PLACE = "/opt/hvd"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Its ``/opt/hvd``: what the first stage copies is all there is to install from."""
    source, made = tmp_path / "src", tmp_path / "hvd"
    source.mkdir()
    build, final = stages(ROOT / "docker" / "discover.Dockerfile")
    assert f"--from=build {PLACE} {PLACE}" in [each.rest for each in final]
    for word, rest in build:
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                copy(ROOT / name, source / target / ("" if len(names) == 1 and (ROOT / name).is_dir() else name))
        if word == "RUN":
            command = re.sub(r"\bpython -m venv\b", f"{sys.executable} -m venv", rest.replace(PLACE, str(made)))
            done = subprocess.run(["sh", "-ec", command], cwd=source, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return made


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_image_holds_the_daemon_with_all_its_sources_and_nothing_to_train_with(image: Path, tmp_path: Path) -> None:
    environment = {"PATH": f"{image}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    once = run("hvd-discover", "--once", "--source", "static", "--hosts", "a:1")
    assert (once.returncode, "a" in once.stdout) == (0, True), once.stderr
    cluster = run("hvd-discover", "--once", "--source", "kubernetes", "--job", "digits")
    assert "no cluster: this is not a pod" in cluster.stderr  # and not: the client is missing
    probe = run("python", "-I", "-m", "discover.probe", str(tmp_path / "s"), "/livez")
    assert (probe.returncode, "No such file" in probe.stderr) == (1, True)
    installed = run("python", "-m", "pip", "list", "--format=freeze").stdout
    assert f"kubernetes=={pinned('kubernetes')}\n" in installed
    assert not re.search(r"^(torch|numpy|horovod|pytest)==", installed, re.MULTILINE)


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]
