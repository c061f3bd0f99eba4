"""What ``hvd-elastic checkpoints`` says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hvd_elastic_ext.checkpoint.conversion import export
from hvd_elastic_ext.checkpoint.programs import cli
from hvd_elastic_ext.checkpoint.stores.choose import open_store


@pytest.mark.parametrize(
    ("count", "to", "said"), [(1, ".", "1 file"), (2, ".", "2 files"), (1, "model.pt", "1 tensor")]
)
def test_an_export_says_how_much_was_written(
    count: int, to: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "export", lambda *_, **__: count)
    options = argparse.Namespace(name="000001", to=tmp_path / to, force=False)
    assert cli._export(open_store(str(tmp_path), {}), options) == 0
    assert capsys.readouterr().out == f"000001: {said} to {tmp_path / to}\n"


@pytest.mark.parametrize(
    ("words", "names"),
    [(["--job", "kept"], []), (["--job", "kept", "000001"], ["000001"]), (["kept", "000001"], ["000001"])],
)
def test_verify_reads_the_names_after_a_job(
    words: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(cli, "place_of", lambda given: asked.append(given) or str(tmp_path))
    monkeypatch.setattr(cli, "_verify", lambda _, options: asked.append(options.names) or 0)
    assert cli.main(["verify", *words]) == 0
    assert asked == ["kept", names]
