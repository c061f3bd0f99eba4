"""docs/architecture.md draws what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/architecture.md").read_text()


def folders() -> set[str]:
    """Every folder of the product."""
    found = (path.parent for top in ("hvd_elastic_ext", "discover") for path in (ROOT / top).rglob("__init__.py"))
    return {str(path.relative_to(ROOT)) for path in found}


def drawn() -> set[str]:
    """The folders of the tree, by how far each is indented."""
    tree = TEXT.partition("## The tree")[2].partition("```")[2].partition("```")[0]
    found, above = set(), []
    for indent, name in re.findall(r"^( *)(\w+)/", tree, re.MULTILINE):
        above = [one for one in above if len(one[0]) < len(indent)] + [(indent, name)]
        found.add("/".join(name for _, name in above))
    return found


def test_every_folder_is_drawn_and_nothing_else() -> None:
    assert drawn() == folders()


PARTS = "core|io|discover|launcher|agent|worker|report|checkpoint|jobs|dashboard"


def file(name: str) -> Path | None:
    return next((path for root in (ROOT, ROOT / "hvd_elastic_ext") if (path := root / name).exists()), None)


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(rf"`((?:{PARTS})/[\w/]+(?:\.py|/))(?::\w+)?`", TEXT))
    assert len(named) > 25
    assert {name for name in named if file(name) is None} == set()


@pytest.mark.parametrize(("path", "name"), sorted(set(re.findall(rf"`((?:{PARTS})/[\w/]+\.py):(\w+)`", TEXT))))
def test_every_function_of_the_walks_is_in_its_file(path: str, name: str) -> None:
    found = file(path)
    assert found is not None
    assert re.search(rf"^ *(async )?(def|class) {name}\b", found.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_arrow_of_strangers_is_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    drawn = TEXT.partition("## Arrows")[2].split("```")[1].split("──▶")
    names = [{name.strip().removeprefix("hvd_elastic_ext.") for name in re.split("[|·]", layer)} for layer in layers]
    assert [{name.strip() for name in one.split("·")} for one in drawn] == names
