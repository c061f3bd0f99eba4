"""One tree of errors: what to do about each, and the exit code it means."""

import ast
import re
import signal
from pathlib import Path

import pytest

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core import errors
from hvd_elastic_ext.core.errors import Asleep, BadHosts, Interrupted, UsageError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (BadHosts("f", 1, "x"), 2),
        (errors.JobFailed("x"), 1),
        (errors.BadPublication("x"), 1),
        (Interrupted(signal.SIGINT, "x"), 130),
        (Interrupted(signal.SIGTERM, "x"), 143),
        (Asleep("x"), 75),
    ],
)
def test_exit_codes_are_those_of_the_contract(error, code):
    assert error.exit_code == code


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("the script fails: x", "the script fails: x"),
        (
            "the script fails: x\nTraceback (most recent call last):\n  File",
            "the script fails: x; its traceback is above, in the output of the process",
        ),
    ],
)
def test_why_a_job_failed_is_one_line_without_the_traceback(message, line):
    assert errors.JobFailed(message).line == line


ROOT = Path(errors.__file__).parents[2]
PACKAGES = ("hvd_elastic_ext", "discover")


CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)


def classes_below(name):
    """Each class of the product's source that derives from the error ``name``, with its file."""
    known = {name}
    kinds = [
        (kind, {base.strip() for base in bases.split(",")}, path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for kind, bases in CLASS.findall(path.read_text())
    ]
    found = []
    while more := [(kind, path) for kind, bases, path in kinds if kind not in known and known & bases]:
        known |= {kind for kind, _ in more}
        found += more
    return found


def test_the_page_of_errors_has_every_error_of_the_project_with_its_file():
    page = errors.__doc__
    found = classes_below("ElasticError")
    assert len(found) > 20
    assert {kind: path for kind, path in found if kind not in page} == {}
    for kind, path in found:
        at = str(path.relative_to(ROOT)).removeprefix("hvd_elastic_ext/")
        assert at == "core/errors.py" or at in page, f"{kind} is not with its file"


def test_nothing_that_a_training_script_runs_raises_an_error_without_a_name_for_users():
    unnamed = {}
    folders = [ROOT / "hvd_elastic_ext" / name for name in ("worker", "checkpoint/values")]
    for path in [*(file for folder in folders for file in folder.rglob("*.py")), ROOT / "hvd_elastic_ext/torch.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in (
                "Permanent",
                "Transient",
                "ElasticError",
            ):
                unnamed[f"{path.relative_to(ROOT)}:{node.lineno}"] = call.func.id
    assert not unnamed


def test_the_public_module_has_the_errors_that_training_scripts_see():
    for name in ("ElasticError", "StateError", "UsageError", "DataError"):
        assert getattr(elastic, name) is getattr(errors, name)
        assert name in elastic.__all__
