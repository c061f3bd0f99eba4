"""A function is sent as text that does the same, or refused with what cannot be sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.local import script
from hvd_elastic_ext.jobs.local.run import run
from tests.unit.jobs.local import made_here


@pytest.fixture
def in_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: nothing of the module can be imported by its name."""
    for value in vars(made_here).values():
        if getattr(value, "__module__", None) == made_here.__name__:
            monkeypatch.setattr(value, "__module__", "__main__")
    original = script.inspect.getmodule
    monkeypatch.setattr(
        script.inspect, "getmodule", lambda value, *_: made_here if value is made_here.Model else original(value)
    )


def test_a_function_of_a_module_is_sent_by_its_name() -> None:
    assert f"from {made_here.__name__} import train as train\n" in script.script_of(made_here.train) + "\n"


def test_a_function_of_a_notebook_is_sent_with_all_that_it_uses_and_does_the_same(
    in_main: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.inspect, "getsource", source_of)
    text = script.script_of(made_here.train)
    assert "OPEN" not in text
    (tmp_path / "sent.py").write_text(text)
    code = "import sent; print(sent.train(0, more=1), sent.train(7))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == f"{made_here.train(0, more=1)} {made_here.train(7)}", done.stderr


def source_of(value: Any) -> str:
    """Of what pretends to be of a notebook."""
    lines = Path(made_here.__file__).read_text().split("\n\n\n")
    return next(part for part in lines if part.startswith((f"def {value.__name__}(", f"class {value.__name__}"))) + "\n"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: 1, "not a function with a name"),
        (made_here.Model, "not a function with a name"),
        (made_here.makes(), "uses outside of the function around it: pass it in args"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_the_reason(function: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        script.script_of(function)


def test_a_value_that_cannot_be_sent_is_named(in_main: None) -> None:
    with pytest.raises(UsageError, match="uses_a_file uses OPEN, a TextIOWrapper, which cannot be sent"):
        script.script_of(made_here.uses_a_file)


def test_an_argument_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(
        UsageError, match=r"^run: given\['args'\]\[1\]: it is a builtins.object, which is not a plain value; "
    ):
        run(made_here.train, args=[1, object()], np=1)


def test_a_number_of_processes_is_needed() -> None:
    with pytest.raises(UsageError, match="give np, the number of processes, or hosts"):
        run(made_here.train, args=[1])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("floats", "[inf, {'a': (-inf,)}]"),
        ("of_a_package", "a"),
        ("with_hints", "[None, True]"),
        ("with_its_own_variable", "3"),
        ("decorated", "2"),
        ("of_a_class", "Point(x=1, y=None)"),
    ],
)
def test_what_a_notebook_has_means_the_same_in_the_script(tmp_path: Path, function: str, expected: str) -> None:
    made = script_of_notebook(tmp_path, function)
    assert made.returncode == 0, made.stderr
    (tmp_path / "sent.py").write_text(made.stdout)
    code = f"import sent; print(sent.{function}())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("later", "later: wrapped has more around it than its source says"),
        ("of_a_tuple", "of_a_tuple uses PLACE, a Place, which cannot be sent"),
        ("of_a_counter", "of_a_counter uses COUNTS, a Counter, which cannot be sent"),
    ],
)
def test_what_would_be_another_value_in_the_script_is_refused(tmp_path: Path, function: str, why: str) -> None:
    made = script_of_notebook(tmp_path, function)
    assert why in made.stderr


def script_of_notebook(folder: Path, function: str) -> subprocess.CompletedProcess[str]:
    path = folder / "notebook.py"
    path.write_text(NOTEBOOK)
    return subprocess.run([sys.executable, path, function], capture_output=True, text=True, timeout=60, check=False)


NOTEBOOK = """
import collections
import functools
import sys
import xml.etree.ElementTree
from dataclasses import dataclass
from typing import List, NamedTuple, Optional

from hvd_elastic_ext.jobs.local.script import script_of

INF, FLOATS = float("inf"), {"a": (float("-inf"),)}
COUNTS = collections.Counter("a")
Numbers = List[int]
model = object()


class Place(NamedTuple):
    x: int


PLACE = Place(1)


@dataclass
class Point:
    x: int
    y: Optional[Numbers] = None


def more(function):
    @functools.wraps(function)
    def inner():
        return function() + 1

    return inner


def floats():
    return [INF, FLOATS]


def of_a_package():
    return xml.etree.ElementTree.fromstring("<a/>").tag


def with_hints(numbers: Optional[Numbers] = None) -> Numbers:
    return [numbers, Optional[int] is not None]


def with_its_own_variable():
    model = 3
    return model


@more
def decorated():
    return 1


def of_a_class():
    return Point(1)


def one():
    return 1


wrapped = more(one)


def later():
    return wrapped()


def of_a_tuple():
    return PLACE


def of_a_counter():
    return COUNTS


print(script_of(globals()[sys.argv[1]]))
"""
