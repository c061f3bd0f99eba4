"""Each of the thirty rules of following a cluster has a test that is called after it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (\d\d) \| ", re.MULTILINE)
TEST = re.compile(r"^ *(?:async )?def (test_rule_\w+)", re.MULTILINE)
NAME = re.compile(r"test_rule_((?:\d\d_)+)[a-z]")


def written() -> list[str]:
    """The rules of docs/testing.md."""
    return ROW.findall((ROOT / "docs/testing.md").read_text())


def named_after() -> dict[str, list[str]]:
    """Names of tests by the rules that they are called after."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in TEST.findall(path.read_text()):
            named = NAME.match(name)
            assert named, f"{path.name}: {name}: write test_rule_NN_ and then the sentence"
            for rule in named[1].split("_")[:-1]:
                found.setdefault(rule, []).append(name)
    return found


def test_the_documentation_has_each_of_the_thirty_rules_once():
    assert written() == [f"{number:02}" for number in range(1, 31)]


def test_every_rule_has_a_test_that_is_called_after_it_and_every_such_test_a_rule():
    assert set(named_after()) == set(written())
