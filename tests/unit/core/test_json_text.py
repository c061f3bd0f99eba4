"""What other programs read is JSON to all of them, not only to Python."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.json_text import finite, to_text

ROOT = Path(__file__).parents[3]
LOST = {"loss": math.nan, "until": [1.5, math.inf, (-math.inf,)], "name": "a"}


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    assert strict(to_text(LOST)) == {"loss": None, "until": [1.5, None, [None]], "name": "a"}
    assert finite({"a": 1, "b": True}) == {"a": 1, "b": True}


def test_a_caller_may_have_something_else_in_their_place() -> None:
    assert strict(to_text(LOST, instead=repr)) == {"loss": "nan", "until": [1.5, "inf", ["-inf"]], "name": "a"}


def test_keys_are_sorted_and_other_values_are_text_where_that_is_asked_for() -> None:
    assert to_text({"b": Path("x"), "a": math.inf}, default=str, sort_keys=True) == '{"a":null,"b":"x"}'


def test_whatever_is_written_as_json_is_strict() -> None:
    """``json.dumps`` is called with ``allow_nan=False``, or by ``core/json_text.py``."""
    lax = []
    for path in (path for folder in ("hvd_elastic_ext", "discover") for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "json.dump" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dump", "json.dumps"):
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                lax += [] if given.get("allow_nan") == "False" else [f"{path.relative_to(ROOT)}:{node.lineno}"]
    assert not lax
