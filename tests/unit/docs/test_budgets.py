"""The budgets of CONTRIBUTING.md: a folder, a module and a function stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[3]
MODULES = [path for package in ("hvd_elastic_ext", "discover") for path in sorted((ROOT / package).rglob("*.py"))]
MOST_MODULES, MOST_LINES, MOST_OF_FUNCTION, MEDIAN_OF_FUNCTIONS = 14, 500, 60, 10


def test_no_folder_has_too_many_modules() -> None:
    count = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert not {str(folder.relative_to(ROOT)): number for folder, number in count.items() if number > MOST_MODULES}


def test_no_module_and_no_function_is_too_long() -> None:
    long, lengths = {}, []
    for path in MODULES:
        text = path.read_text()
        if text.count("\n") > MOST_LINES:
            long[str(path.relative_to(ROOT))] = text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                if lengths[-1] > MOST_OF_FUNCTION:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lengths[-1]
    assert not long
    assert median(lengths) <= MEDIAN_OF_FUNCTIONS
