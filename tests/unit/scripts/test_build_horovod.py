"""The command line of ``scripts/build-horovod``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tooling import build_horovod
from tooling.build_horovod import TENSORFLOW, Request, asked, built_for, had, in_words, parser, to_add
from tooling.errors import ToolingError
from tooling.interpreter import Interpreter
from tooling.wheel_key import WheelFacts


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("env/bin/python", "{here}/env/bin/python"),
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("python3.11", "python3.11"),
    ],
)
def test_a_relative_path_of_a_python_starts_where_the_command_was_given(
    given: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[Request] = []

    def ensure_wheel(request: Request) -> Path:
        requests.append(request)
        return tmp_path / "horovod.whl"

    monkeypatch.setenv("INVOKED_FROM", str(tmp_path))
    monkeypatch.setattr(build_horovod, "ensure_wheel", ensure_wheel)
    assert build_horovod.main(["--python", given]) == 0
    assert [request.python for request in requests] == [asked.format(here=tmp_path)]
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "horovod.whl")


def test_cmake_4_takes_the_versions_that_gloo_asks_for(tmp_path: Path) -> None:
    environment = build_horovod.build_environment({}, venv=tmp_path, request=Request(python="python3"), jobs=2)
    assert environment["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"


def request(line: str = "") -> Request:
    return asked(parser().parse_args(line.split()))


@pytest.mark.parametrize(
    ("line", "with_torch", "with_tensorflow", "tensorflow"),
    [
        ("", True, False, None),
        ("--with tensorflow", True, True, None),
        ("--tensorflow 2.15.1", True, True, "2.15.1"),
        ("--without torch --with tensorflow", False, True, None),
        ("--without torch --tensorflow 2.15.1", False, True, "2.15.1"),
    ],
)
def test_options_say_what_the_wheel_is_for(
    line: str, with_torch: bool, with_tensorflow: bool, tensorflow: str | None
) -> None:
    made = request(line)
    assert (made.with_torch, made.with_tensorflow, made.tensorflow) == (with_torch, with_tensorflow, tensorflow)


def test_the_environment_of_make_adds_nothing_to_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WITH", "tensorflow")
    assert request().with_tensorflow is False


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--without torch", "--without torch leaves nothing to build for; give --with tensorflow, too."),
        (
            "--without torch --torch 2.12.0 --with tensorflow",
            "--torch 2.12.0 and --without torch contradict each other; leave one out.",
        ),
    ],
)
def test_libraries_that_do_not_go_together_are_refused_in_one_line(
    line: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_horovod, "raise_on_sigterm", lambda: None)
    with pytest.raises(ToolingError):
        request(line)
    assert build_horovod.main(line.split()) == 1
    assert capsys.readouterr() == ("", f"build-horovod: {said}\n")


def python(torch: str | None = None, tensorflow: str | None = None) -> Interpreter:
    return Interpreter("python3", (3, 11, 7), "cpython-311", torch, tensorflow, ())


@pytest.mark.parametrize(
    ("there", "line", "added"),
    [
        (python(), "", ["torch==2.13.0", "numpy"]),
        (python(), "--with tensorflow", ["torch==2.13.0", f"{TENSORFLOW}==2.21.0", "numpy"]),
        (python(), "--without torch --tensorflow 2.15.1", [f"{TENSORFLOW}==2.15.1", "numpy"]),
        (python("2.12.0", "2.15.1"), "--with tensorflow", []),
        (python("2.12.0", "2.15.1"), "--torch 2.13.0", ["torch==2.13.0", "numpy"]),
        (python("2.12.0", "2.15.1"), "--tensorflow 2.21.0", [f"{TENSORFLOW}==2.21.0", "numpy"]),
        (python("2.12.0"), "--with tensorflow", [f"{TENSORFLOW}==2.21.0", "numpy"]),
        (python("2.12.0"), "", []),
        (python(None, "2.15.1"), "--without torch --with tensorflow", []),
    ],
)
def test_a_build_takes_what_the_python_has_and_adds_the_rest(there: Interpreter, line: str, added: list[str]) -> None:
    assert to_add(there, request(line)) == added


def test_a_tensorflow_of_the_python_keeps_the_numpy_that_it_has_there() -> None:
    assert to_add(python(None, "2.15.1"), request("--with tensorflow")) == ["torch==2.13.0"]


@pytest.mark.parametrize(
    ("there", "line", "said"),
    [
        (python(None, "2.15.1"), "--with tensorflow", "TensorFlow 2.15.1 and no torch"),
        (python(), "--with tensorflow", "no torch and no TensorFlow"),
        (python("2.12.0", "2.15.1"), "--torch 2.13.0", "torch 2.12.0"),
        (python(), "--without torch --with tensorflow", "no TensorFlow"),
    ],
)
def test_only_what_is_asked_for_is_said_of_a_python(there: Interpreter, line: str, said: str) -> None:
    assert had(there, request(line)) == said


@pytest.mark.parametrize(
    ("torch", "tensorflow", "words"),
    [
        ("2.13.0", None, "torch 2.13.0"),
        (None, "2.15.1", "TensorFlow 2.15.1"),
        ("2.13.0", "2.15.1", "torch 2.13.0 and TensorFlow 2.15.1"),
    ],
)
def test_a_wheel_is_named_by_its_libraries(
    facts: WheelFacts, torch: str | None, tensorflow: str | None, words: str
) -> None:
    assert built_for(replace(facts, torch=torch, tensorflow=tensorflow)) == words


def test_lists_read_as_in_a_sentence() -> None:
    assert [in_words(list(names)) for names in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
