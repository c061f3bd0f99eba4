"""What ``hvd-elastic checkpoints`` says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hvd_elastic_ext.checkpoint.conversion import export
from hvd_elastic_ext.checkpoint.programs import cli
from hvd_elastic_ext.checkpoint.stores import open_store


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
