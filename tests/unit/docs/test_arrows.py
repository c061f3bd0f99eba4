"""The arrows of docs/architecture.md, and those in the docstrings of folders, are the import contracts."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
PACKAGE = "hvd_elastic_ext"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ARROWS = (ROOT / "docs/architecture.md").read_text().partition("## Arrows")[2].split("```")[1]
MOST_LAYERS = 6
SHARED = {"io", "core"}
"""What everything may import."""


class Layer(NamedTuple):
    """Folders side by side. ``apart``: none of them may import another one."""

    folders: frozenset[str]
    apart: bool


def layer(text: str, *, apart: str, together: str) -> Layer:
    folders = frozenset(name.strip().removeprefix(f"{PACKAGE}.") for name in re.split(f"[{apart}{together}]", text))
    return Layer(folders, apart in text or len(folders) == 1)


def enforced() -> dict[str, list[Layer]]:
    """The layers of each contract, by the last name of the folder that they divide."""
    return {
        contract.get("containers", ["whole"])[0].rpartition(".")[2]: [
            layer(text, apart="|", together=":") for text in contract["layers"]
        ]
        for contract in CONTRACTS
        if contract["type"] == "layers"
    }


def drawn() -> dict[str, list[Layer]]:
    chains = re.findall(r"^ +([a-z]+): +(.+)$", ARROWS, re.MULTILINE)
    return {name: [layer(text, apart="·", together=",") for text in chain.split("──▶")] for name, chain in chains}


def folders_beside(folder: Path) -> set[str]:
    beside = {each.parent.name for each in folder.parent.glob("*/__init__.py")}
    return (beside | ({"discover"} if folder.parent.name == PACKAGE else set())) - {folder.name}


def narrow() -> dict[str, set[str]]:
    """Folders that a contract forbids some of the folders beside them, and which it leaves them."""
    found = {}
    for contract in CONTRACTS:
        if contract["type"] != "forbidden" or len(contract["source_modules"]) != 1:
            continue
        folder = ROOT / contract["source_modules"][0].replace(".", "/")
        forbidden = {
            name.rpartition(".")[2]
            for name in contract["forbidden_modules"]
            if (ROOT / name.replace(".", "/")).parent == folder.parent or name == "discover"
        }
        if folder.is_dir() and forbidden:
            found[folder.name] = folders_beside(folder) - forbidden - SHARED
    return found


def test_the_arrows_are_the_contracts() -> None:
    assert drawn() == enforced()


def test_a_chain_is_short_enough_to_be_kept_in_mind() -> None:
    assert {name: len(layers) for name, layers in enforced().items() if len(layers) > MOST_LAYERS} == {}


def test_the_folders_that_may_import_little_are_drawn_with_what_they_may_import() -> None:
    line = ARROWS.partition("no more than:")[2].strip()
    arrows = [arrow.split("──▶") for arrow in line.split(";")]
    assert {name.strip(): {each.strip() for each in more.split(",")} for name, more in arrows} == narrow()


@pytest.mark.parametrize("folder", ["launcher", "agent", "worker", "checkpoint"])
def test_a_folder_lists_its_layers_as_the_contracts_do(folder: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / PACKAGE / folder / "__init__.py").read_text()))
    assert text is not None
    block = re.split(r"may import\s+those below it::\n", text)[1]
    rows = re.findall(r"^    (\S+(?:, \S+)*)(?:  .*)?$", block, re.MULTILINE)
    listed = [frozenset(row.split(", ")) for row in rows]
    assert listed == [layer.folders for layer in enforced()[folder]]


def test_every_folder_of_a_folder_with_layers_has_its_layer() -> None:
    launcher = ROOT / PACKAGE / "launcher"
    tops = {"whole": ROOT / PACKAGE, "discover": ROOT / "discover", "rules": launcher / "rules"}
    tops |= {"state": launcher / "state", "effects": launcher / "state/effects"}
    for name, layers in enforced().items():
        top = tops.get(name, ROOT / PACKAGE / name)
        there = {each.parent.name for each in top.glob("*/__init__.py")} - {"demo", "install"}
        assert there - {folder for one in layers for folder in one.folders} == set(), name
