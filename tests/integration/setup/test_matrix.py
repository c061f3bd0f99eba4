"""The official client's versions, and a user's training, each in an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MATRIX = ROOT / "scripts/matrix"
TRAINING = ROOT / "scripts/matrix-training"
TENSORFLOW = ROOT / "scripts/matrix-tensorflow"
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


def test_the_matrices_try_every_python_that_the_package_names():
    package = (ROOT / "setup.py").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', package)
    tried = re.search(r'^PYTHONS="\$\{PYTHONS:-(.*)\}"$', (ROOT / "scripts/lib/pythons.sh").read_text(), re.MULTILINE)
    assert tried is not None
    assert tried[1].split() == [f"python{version}" for version in named]
    assert f'python_requires=">={named[0]}"' in package


def no_network(said: str) -> bool:
    """Whether this is what pip says when it does not get through to its index."""
    return re.search(r"\b(NewConnection|ConnectTimeout|ReadTimeout|NameResolution|Proxy)Error\b", said) is not None


def test_only_an_index_that_cannot_be_reached_is_a_network_error():
    broken = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: [Errno 101]')'"
    assert no_network(f"{broken}: /simple/kubernetes/\nERROR: No matching distribution found for kubernetes")
    assert not no_network("ERROR: No matching distribution found for kubernetes==31.0.0")
    assert not no_network("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/")
    assert not no_network("error: subprocess-exited-with-error")


def test_both_ends_of_the_range_of_tensorflow_are_tried():
    said = re.search(r'"tensorflow>=2\.(\d+),<2\.(\d+)"', (ROOT / "setup.py").read_text())
    earlier = re.search(r"^TENSORFLOW=2\.(\d+)\.", TENSORFLOW.read_text(), re.MULTILINE)
    later = re.search(r"^tensorflow==2\.(\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert said is not None
    assert earlier is not None
    assert later is not None
    assert (int(earlier[1]), int(later[1]) + 1) == (int(said[1]), int(said[2]))


@pytest.mark.parametrize("matrix", [MATRIX, TENSORFLOW, TRAINING], ids=lambda matrix: matrix.name)
def test_a_matrix_without_any_python_fails(matrix: Path):
    environment = {**os.environ, "PYTHONS": "python3.0 python3.1"}
    done = subprocess.run([matrix], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"python3.1: not here\n{matrix.name}: nothing was tested" in done.stderr


@pytest.mark.soak
def test_a_python_for_which_there_is_no_torch_fails(tmp_path: Path):
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    environment = {**os.environ, "PYTHONS": PYTHON, **nowhere}
    done = subprocess.run([TRAINING], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No matching distribution found for torch==2.13.0" in done.stderr
    assert f"{PYTHON}: FAILED: Installing torch 2.13.0 failed (exit status 1)\n" in done.stderr


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


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_fresh_environment_trains_through_a_kill_and_a_stop():
    """Horovod's wheel comes from the cache, where the tests' own environment has it from, unless torch is another, or
    that has TensorFlow, too."""
    environment = {**os.environ, "PYTHONS": PYTHON, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    done = subprocess.run([TRAINING], env=environment, capture_output=True, text=True, check=False)
    if "FAILED: Installing" in done.stderr and no_network(done.stderr):
        pytest.skip(f"needs a package index that has torch 2.13.0: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert re.search(rf"^  {re.escape(PYTHON)}: passed; .* 250 steps, one worker killed", done.stderr, re.MULTILINE)
