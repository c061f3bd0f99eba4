"""The official client's versions, each in its own environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MATRIX = ROOT / "scripts/matrix"
PYTHON = "python{}.{}".format(*sys.version_info)


def versions() -> list[str]:
    """The default versions."""
    found = re.search(r'^CLIENTS="\$\{CLIENTS:-(.*)\}"$', MATRIX.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_rule_30_the_default_versions_include_both_ends_of_the_range_and_the_pinned_one():
    said = re.search(r'"kubernetes>=(\d+),<(\d+),!=36\.0\.0"', (ROOT / "setup.py").read_text())
    assert said is not None
    majors = [int(version.partition(".")[0]) for version in versions()]
    assert (majors[0], majors[-1] + 1) == (int(said[1]), int(said[2]))
    assert "36.0.0" not in versions()
    pinned = re.search(r"^kubernetes==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] in versions()


def no_network(said: str) -> bool:
    """Whether this is what pip says when it does not get through to its index."""
    return re.search(r"\b(NewConnection|ConnectTimeout|ReadTimeout|NameResolution|Proxy)Error\b", said) is not None


def test_only_an_index_that_cannot_be_reached_is_a_network_error():
    broken = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: [Errno 101]')'"
    assert no_network(f"{broken}: /simple/kubernetes/\nERROR: No matching distribution found for kubernetes")
    assert not no_network("ERROR: No matching distribution found for kubernetes==31.0.0")
    assert not no_network("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/")
    assert not no_network("error: subprocess-exited-with-error")


def test_a_matrix_without_any_python_fails():
    environment = {**os.environ, "PYTHONS": "python3.0 python3.1"}
    done = subprocess.run([MATRIX], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python3.1: not here\nmatrix: nothing was tested" in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", [versions()[0], versions()[-1]])
def test_rule_30_both_ends_follow_an_api_server(client: str):
    environment = {**os.environ, "CLIENTS": client, "PYTHONS": PYTHON}
    done = subprocess.run([MATRIX], env=environment, capture_output=True, text=True, check=False)
    if "NOT INSTALLED" in done.stderr and no_network(done.stderr):
        pytest.skip(f"needs a package index that has kubernetes {client}: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert f"{PYTHON}, kubernetes {client}: passed" in done.stderr
