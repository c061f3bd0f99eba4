"""The command line of ``scripts/build-horovod``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tooling import build_horovod


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
    requests: list[Any] = []

    def ensure_wheel(request: Any) -> Path:
        requests.append(request)
        return tmp_path / "horovod.whl"

    monkeypatch.setenv("INVOKED_FROM", str(tmp_path))
    monkeypatch.setattr(build_horovod, "ensure_wheel", ensure_wheel)
    assert build_horovod.main(["--python", given]) == 0
    assert [request.python for request in requests] == [asked.format(here=tmp_path)]
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "horovod.whl")


def test_cmake_4_takes_the_versions_that_gloo_asks_for(tmp_path: Path) -> None:
    request = build_horovod.Request(python="python3")
    environment = build_horovod.build_environment({}, venv=tmp_path, request=request, jobs=2)
    assert environment["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"
