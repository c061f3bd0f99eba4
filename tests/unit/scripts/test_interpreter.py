"""What a Python is asked before a wheel is built for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tooling.interpreter import add_to_path, examine

from tests.support.environments import linked_environment


def install(site: Path, name: str, version: str) -> None:
    """What pip leaves of a package in its folder, as far as the question goes."""
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python without any package."""
    return linked_environment(tmp_path / "z", wanted=lambda name: False)


def site_of(python: Path) -> Path:
    [site] = python.parents[1].glob("lib/python3*/site-packages")
    return site


def test_a_python_without_either_says_so(python: Path) -> None:
    found = examine(str(python))
    assert (found.torch, found.tensorflow) == (None, None)
    assert found.version == sys.version_info[:3]
    assert found.site == (str(site_of(python)),)


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow_cpu", "tensorflow-rocm", "tf_nightly"])
def test_a_tensorflow_is_found_in_any_of_its_packages(python: Path, package: str) -> None:
    install(site_of(python), package, "2.15.1")
    install(site_of(python), "tensorflow_estimator", "2.14.0")
    assert examine(str(python)).tensorflow == "2.15.1"


def test_torch_says_its_version_with_the_local_tag(python: Path) -> None:
    install(site_of(python), "torch", "2.13.0")
    (site_of(python) / "torch").mkdir()
    (site_of(python) / "torch/version.py").write_text("__version__ = '2.13.0+cpu'\n")
    assert examine(str(python)).torch == "2.13.0+cpu"


def test_of_two_tensorflows_the_earlier_one_on_the_path_counts_and_folders_keep_their_order(
    python: Path, tmp_path: Path
) -> None:
    """As when a build adds one for itself: the user's environment comes after that, whatever its name."""
    theirs = tmp_path / "a" / "site-packages"
    install(theirs, "tensorflow", "2.21.0")
    install(site_of(python), "tensorflow_cpu", "2.15.1")
    add_to_path(python.parents[1], (str(theirs),))

    found = examine(str(python))

    assert found.tensorflow == "2.15.1"
    assert found.site == (str(site_of(python)), str(theirs))
