"""``kube`` for pytest: ``from tests.support.kube.fixtures import kube`` in a conftest or a test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kube.server import KubeServer


@pytest.fixture
def kube() -> Iterator[KubeServer]:
    """A server over plain HTTP: ``kube.url``, ``kube.token``, ``kube.kubeconfig(path)``."""
    with KubeServer() as server:
        yield server


@pytest.fixture
def kube_tls(tmp_path: Path) -> Iterator[KubeServer]:
    """A server over HTTPS: ``kube_tls.ca_file`` is its CA."""
    folder = tmp_path / "kube-tls"
    folder.mkdir()
    with KubeServer(tls=True, folder=folder) as server:
        yield server
