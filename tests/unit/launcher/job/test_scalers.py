"""What adds and removes hosts: the values of ``--scale-with``, and the input of programs and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.job.scalers import FileScaler, NotScaled, ProgramScaler, ScaleWith, read


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("recommend", ScaleWith("recommend")),
        ("file:/tmp/x", ScaleWith("file", "/tmp/x")),
        ("exec:sh -c 'true; false'", ScaleWith("exec", "sh -c 'true; false'")),
        ("statefulset/digits", ScaleWith("statefulset", "digits")),
        ("deployment/digits", ScaleWith("deployment", "digits")),
    ],
)
def test_what_it_names_is_read(text: str, found: ScaleWith) -> None:
    assert read(text) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nobody", "--scale-with 'nobody': write recommend, file:PATH, exec:COMMAND or KIND/NAME"),
        ("exec:", "--scale-with 'exec:': write exec:COMMAND"),
        ("exec:'", '--scale-with "exec:\'": No closing quotation'),
        ("statefulsets/digits", "did you mean 'statefulset'?"),
        ("statefulset/", "--scale-with 'statefulset/' names no object"),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert error in str(caught.value)


def test_only_workloads_with_numbered_pods_choose_who_goes() -> None:
    assert read("statefulset/digits").ordered
    assert not read("deployment/digits").ordered
    assert not read("trainingjob/digits").ordered
    assert not read("exec:true").ordered


def test_a_file_is_replaced_as_a_whole_and_says_what_somebody_else_wrote(tmp_path: Path) -> None:
    scaler = FileScaler(tmp_path / "wanted.json")
    assert scaler.asked_for() is None
    scaler.scale(4, ["h3"], 'says "more"')
    assert json.loads((tmp_path / "wanted.json").read_text()) == {
        "hosts": 4,
        "leaving": ["h3"],
        "reason": 'says "more"',
    }
    (tmp_path / "wanted.json").write_text('{"hosts": 7}')
    assert scaler.asked_for() == 7
    (tmp_path / "wanted.json").write_text('{"hosts": "many"}')
    with pytest.raises(NotScaled, match="does not say"):
        scaler.asked_for()


def test_a_program_gets_names_and_reasons_in_its_environment_only(tmp_path: Path) -> None:
    script = tmp_path / "scale"
    script.write_text(
        f'#!/bin/sh\necho "$#:$HVD_ELASTIC_HOSTS:$HVD_ELASTIC_LEAVING:$HVD_ELASTIC_REASON" > {tmp_path}/log\n'
    )
    script.chmod(0o700)
    ProgramScaler((str(script),)).scale(2, ["a", "b"], "$(reboot); `x`")
    assert (tmp_path / "log").read_text() == "0:2:a,b:$(reboot); `x`\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sh", "-c", "echo first; echo 'no quota' >&2; exit 3"), "sh ended with exit code 3: no quota"),
        (("/no/such/program",), "/no/such/program cannot be run: No such file or directory"),
    ],
)
def test_a_program_that_fails_says_why(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(NotScaled) as caught:
        ProgramScaler(words).scale(2, [], "")
    assert str(caught.value) == why
