"""A namespace on each server, as a user's commands see it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.kube.conftest import KUBECONFIG, SERVERS, Space, _ours, api, space
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

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
    return _written(whole, tmp_path / "kubeconfig-of-the-space")


def _written(whole: dict[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump(whole))
    return path


@pytest.fixture
def unattended(space: Space, request: pytest.FixtureRequest) -> None:
    """For a test of objects that nobody else changes. The controller manager gives each namespace a ConfigMap."""
    if request.node.callspec.params["api"] == "ours":
        return
    given = space.path("configmaps", "kube-root-ca.crt")
    with contextlib.suppress(AssertionError):
        wait_until(lambda: space.api.ask("GET", given).code == 200, what="a controller", timeout=10)
        pytest.skip("controllers of this cluster act on the job; name an API server without any")


@pytest.fixture
def newcomers_config(config: Path, space: Space, request: pytest.FixtureRequest) -> Path:
    """A kubeconfig for the same namespace, of an account with the usual ClusterRole ``admin`` there and nothing else.
    That role knows no operators."""
    if request.node.callspec.params["api"] == "ours":
        ours: KubeServer = request.getfixturevalue("_ours")
        token = ours.namespace_admin(space.name)
    else:
        token = _real_admin(space)
    whole = yaml.safe_load(config.read_text())
    for each in whole["users"]:
        each["user"] = {"token": token}
    return _written(whole, config.with_name("kubeconfig-of-the-newcomer"))


def _real_admin(space: Space) -> str:
    post, group = space.api.done, "rbac.authorization.k8s.io"
    post("POST", space.path("serviceaccounts"), {"metadata": {"name": "newcomer"}})
    subject = {"kind": "ServiceAccount", "name": "newcomer", "namespace": space.name}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "admin"}
    binding = {"metadata": {"name": "newcomer"}, "subjects": [subject], "roleRef": role}
    post("POST", space.path("rolebindings", group=f"{group}/v1"), binding)
    asked = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 600}}
    reply = post("POST", space.path("serviceaccounts", "newcomer", "token"), asked)
    return str(reply.body["status"]["token"])


@pytest.fixture
def newcomer(newcomers_config: Path) -> Cluster:
    return Cluster(Access(str(newcomers_config)))


@pytest.fixture
def cluster(config: Path) -> Cluster:
    return Cluster(Access(str(config)))
