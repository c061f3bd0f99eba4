"""``hvd-elastic dashboard -n NAMESPACE``: its list has the jobs of the cluster."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.jobs.test_changes import made
from tests.support.browser import CHROMIUM, browser
from tests.support.processes import run_process
from tests.support.waiting import wait_until


@pytest.mark.timeout(240)
def test_the_list_has_the_jobs_of_the_namespace_and_says_how_to_see_more(
    cluster: Cluster, config: Path, tmp_path: Path
) -> None:
    pytest.importorskip("starlette", reason="the dashboard needs it; pip install starlette uvicorn")
    made(cluster, "mpijob")
    words = ("dashboard", "--listen", "0", "-n", cluster.namespace, "--kubeconfig", str(config))
    with run_process([sys.executable, "-m", "hvd_elastic_ext.cli", *words], cwd=tmp_path) as process:
        wait_until(lambda: "/#" in process.stdout, what="the address", timeout=60, show=lambda: process.output)
        url = process.stdout.split()[0]
        address, _, token = url.removesuffix("/jobs").partition("#")
        asked = urllib.request.Request(f"{address}api/cluster", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=60) as got:
            told = json.load(got)
        [job] = told["jobs"]
        assert (told["namespace"], told["problem"]) == (cluster.namespace, "")
        assert (job["name"], job["kind"], job["ready"], job["asked"]) == ("digits", "MPIJob", 0, 2)
        if CHROMIUM is not None:
            check_in_browser(url, cluster.namespace, tmp_path)


def check_in_browser(url: str, namespace: str, folder: Path) -> None:
    """The list is what the address opens, as no job has a journal here."""
    with browser(folder) as tab:
        tab.open(url)
        tab.wait("document.querySelector('main tbody tr')?.innerText.includes('MPIJob')")
        tab.wait("document.getElementById('main').innerText.includes('no job has a journal here')")  # asked for apart
        told = tab.js("document.getElementById('main').innerText")
    assert "no job has a journal here" in told
    assert f"Namespace {namespace}" in told
    assert "0 of 2" in told
    assert f"`hvd-elastic events digits -n {namespace}` tells what happened" in told
