"""Which tests need TensorFlow, and what a missing one means."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.tensorflow import MISSING, STAMP, is_there, left_out, needs_tensorflow

ROOT = Path(__file__).parents[3]
IMPORTS = re.compile(
    r"^\s*(import|from) (tensorflow|horovod\.(tensorflow|keras)|hvd_elastic_ext\.tensorflow)\b", re.MULTILINE
)
MARKED = re.compile(r"^from tests\.support(\.tensorflow import | import .*\btensorflow\b)", re.MULTILINE)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are imported from, and no other."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("horovod", "tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def put(site: Path, *names: str) -> None:
    for name in names:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("raise AssertionError('imported')")


TF, HOROVOD, TORCH = "tensorflow/__init__.py", "horovod/__init__.py", "horovod/torch/mpi_lib_v2.cpython-311.so"


@pytest.mark.parametrize(
    ("files", "there"),
    [
        ((), False),
        ((TF,), False),
        ((TF, HOROVOD, TORCH), False),
        ((HOROVOD, "horovod/tensorflow/mpi_lib.cpython-311.so"), False),
        ((TF, HOROVOD, "horovod/tensorflow/mpi_lib.cpython-311.so"), True),
    ],
    ids=["nothing", "no Horovod", "a Horovod for torch", "no TensorFlow", "both"],
)
def test_tensorflow_is_there_with_a_horovod_for_it_and_neither_is_imported(
    site: Path, files: tuple[str, ...], there: bool
) -> None:
    put(site, *files)
    assert is_there() is there


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (None, False),
        ("{", False),
        (json.dumps({"options": {}}), False),
        (json.dumps({"options": {"tensorflow": True}}), False),
        (json.dumps({"options": {"tensorflow": False}}), True),
    ],
    ids=["made by other means", "damaged", "by an earlier set-up", "with", "without"],
)
def test_tensorflow_is_left_out_where_the_environment_was_set_up_so(
    tmp_path: Path, stamp: str | None, expected: bool
) -> None:
    if stamp is not None:
        (tmp_path / STAMP).write_text(stamp)
    assert left_out(tmp_path) is expected


def test_the_mark_skips_with_the_command_that_brings_tensorflow() -> None:
    assert needs_tensorflow.mark.kwargs["reason"] == MISSING == "needs TensorFlow: make test WITH=tensorflow"
    assert needs_tensorflow.mark.args == (not is_there(),)


def test_a_test_file_that_imports_tensorflow_imports_what_the_matrix_finds_it_by() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    found = {path for path, text in texts.items() if MARKED.search(text)}
    assert "tests/integration/doctor/test_doctor.py" in found
    assert {path for path, text in texts.items() if IMPORTS.search(text)} - found == set()
