"""constraints.txt names exact versions of everything that is installed."""

import ast
import importlib.metadata
import re
import sysconfig
from pathlib import Path

import pytest

EXACT = re.compile(r"^([a-z0-9-]+)==([0-9][0-9a-z.]*)(?:; python_version (<|>=) '3\.11')?$")
UNPINNED_BY_DESIGN = re.compile(r"nvidia-.*|cuda-.*|triton|hvd-elastic-ext")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture
def pins(root: Path) -> dict[str, list[re.Match[str]]]:
    found: dict[str, list[re.Match[str]]] = {}
    for line in (root / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = EXACT.match(line)
            assert pin, f"not an exact version: {line}"
            found.setdefault(pin[1], []).append(pin)
    return found


def requirements_of(root: Path) -> set[str]:
    """Every name that setup.py, the build system and the set-up scripts may ask pip for."""
    from tooling.build_horovod import BUILD_REQUIREMENTS, TENSORFLOW
    from tooling.setup_tree import HOROVOD_NEEDS, TF_KERAS

    calls = [node for node in ast.walk(ast.parse((root / "setup.py").read_text())) if isinstance(node, ast.Call)]
    keywords = {word.arg: word.value for call in calls for word in call.keywords}
    lines: list[str] = ast.literal_eval(keywords["install_requires"])
    for extra in ast.literal_eval(keywords["extras_require"]).values():
        lines += extra
    build = re.search(r"^requires = (\[.*\])$", (root / "pyproject.toml").read_text(), re.M)
    assert build
    lines += [*ast.literal_eval(build[1]), *BUILD_REQUIREMENTS, *HOROVOD_NEEDS, "horovod", TENSORFLOW, TF_KERAS]
    return {canonical(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in lines}


def test_every_requirement_of_the_project_is_pinned(root: Path, pins: dict[str, list[re.Match[str]]]) -> None:
    named = requirements_of(root)
    assert {"watchdog", "torch", "tensorflow", "tf-keras", "pytest", "wheel", "cffi", "tomli"} <= named
    assert named - set(pins) == set()


def test_everything_installed_is_pinned(pins: dict[str, list[re.Match[str]]]) -> None:
    # Not what others bring along for themselves: setuptools puts its own copies on the path once it is imported.
    installed = list(
        importlib.metadata.distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    )
    there = {canonical(distribution.name) for distribution in installed}
    for distribution in installed:
        name = canonical(distribution.name)
        for requirement in distribution.requires or []:
            needed = canonical(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
            if "extra ==" in requirement or UNPINNED_BY_DESIGN.fullmatch(needed) or name not in pins:
                continue
            if needed not in there:
                continue  # for another platform or Python
            assert needed in pins, f"{name} needs {needed}, which constraints.txt does not pin"


def test_a_package_with_two_lines_covers_every_python_once(pins: dict[str, list[re.Match[str]]]) -> None:
    for name, lines in pins.items():
        assert sorted(line[3] or "" for line in lines) in ([""], ["<", ">="]), name


def test_torch_and_tensorflow_are_the_versions_that_the_tooling_pins(pins: dict[str, list[re.Match[str]]]) -> None:
    from tooling.build_horovod import PINNED_TENSORFLOW, PINNED_TORCH
    from tooling.setup_tree import TF_KERAS

    pinned = {f"{name}=={line[2]}" for name, lines in pins.items() for line in lines}
    tensorflow = {f"{name}=={PINNED_TENSORFLOW}" for name in ("tensorflow", "tensorflow-cpu")}
    assert {f"torch=={PINNED_TORCH}", TF_KERAS, *tensorflow} <= pinned
