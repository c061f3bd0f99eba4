"""Facts of a host that its agent reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.agent import host_facts


def test_versions_are_read_from_what_installers_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in (
        (first, "torch-2.13.0+cpu.dist-info"),
        (first, "Hvd.Elastic-ext-0.1.0.dist-info"),
        (first, "hvd_elastic_ext-0.1.0.dist-info"),
        (second, "torch-1.0.dist-info"),  # hidden by the first
        (second, "horovod-0.28.1-py3.11.egg-info"),
        (second, "broken.dist-info"),
    ):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(first), str(tmp_path / "none"), str(second)])
    versions = {"torch": "2.13.0+cpu", "hvd-elastic-ext": "0.1.0", "horovod": "0.28.1", "numpy": None}
    assert host_facts.versions() == versions


def test_a_connection_leaves_through_the_interface_that_has_its_address() -> None:
    known = {"lo": "127.0.0.1", "eth0": "10.0.0.2"}
    assert host_facts.through("10.0.0.2", known) == "eth0"
    assert host_facts.through("127.0.0.5", known) == "lo"
    assert host_facts.through("10.0.0.3", known) is None
