"""What ``hvd-elastic checkpoints`` says."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_elastic_ext.checkpoint.archive.catalog import Entry
from hvd_elastic_ext.checkpoint.conversion import export
from hvd_elastic_ext.checkpoint.programs import cli
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.core.commit_record import Identity


@pytest.mark.parametrize(
    ("count", "to", "said"), [(1, ".", "1 file"), (2, ".", "2 files"), (1, "model.pt", "1 tensor")]
)
def test_an_export_says_how_much_was_written(
    count: int, to: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "export", lambda *_, **__: count)
    options = argparse.Namespace(name="000001", to=tmp_path / to, force=False, call=None, model=None)
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


def test_verify_says_what_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        Entry("2", Identity(1, 0, 0, 2), whole=True, bytes=2000),
        Entry("1", Identity(1, 0, 0, 1), whole=True, bytes=4000),
    ]
    monkeypatch.setattr(cli.catalog, "listing", lambda _: entries)
    monkeypatch.setattr(cli, "_checked", lambda _, entry: replace(entry, whole=entry.name == "2", why="cut"))
    assert cli.main(["verify", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "verified: 1 of 2 whole; all 2 kB of them match their checksums; 1 damaged"
    )
    assert cli.main(["list", str(tmp_path)]) == 0
    assert "verified" not in capsys.readouterr().out
