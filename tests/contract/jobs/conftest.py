"""A namespace on each server, as a user's commands see it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hvd_elastic_ext.io.kube_access import Access
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.kube.conftest import KUBECONFIG, SERVERS, Space, _ours, api, space
from tests.support.kube.server import KubeServer

__all__ = ["SERVERS", "_ours", "api", "space"]


@pytest.fixture
def config(space: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A kubeconfig that means the namespace."""
    if request.node.callspec.params["api"] == "real":
        whole = yaml.safe_load(Path(os.environ[KUBECONFIG]).expanduser().read_text())
    else:
        ours: KubeServer = request.getfixturevalue("_ours")
        whole = yaml.safe_load(ours.kubeconfig(tmp_path / "whole").read_text())
    for each in whole["contexts"]:
        each["context"]["namespace"] = space.name
    path = tmp_path / "kubeconfig-of-the-space"
    path.write_text(yaml.safe_dump(whole))
    return path


@pytest.fixture
def cluster(config: Path) -> Cluster:
    return Cluster(Access(str(config)))
