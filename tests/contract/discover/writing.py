"""What writes to our API server, over the real client, under the rights of the manifests; time is virtual."""

from __future__ import annotations

import itertools
from pathlib import Path

from discover.watch.cluster import Cluster, Timeouts
from discover.watch.collection import Sender
from hvd_elastic_ext.io.kube.access import Access
from tests.support.clock import ManualClock
from tests.support.kube.server import KubeServer
from tests.support.manifests import documents

ACCOUNT = "hvd-launcher-digits"


class Writing:
    """One server, and daemons that may do what ``files`` of the manifests allow; without any, everything."""

    def __init__(self, kube: KubeServer, folder: Path, *files: str, read: float = 10.0) -> None:
        self.kube = kube
        self.clock = ManualClock()
        self._folder = folder
        self._timeouts = Timeouts(connect=5.0, of_list=read)
        self._token = kube.access.issue_for("default", ACCOUNT) if files else None
        self._numbers = itertools.count()
        kube.apply(each for file in files for each in documents(file) if each["kind"] != "MPIJob")
        self._made: list[Sender] = []

    def sender(self) -> Sender:
        config = self.kube.kubeconfig(self._folder / f"kubeconfig-{next(self._numbers)}", token=self._token)
        sender = Cluster(Access(str(config)), timeouts=self._timeouts).sender()
        self._made.append(sender)
        return sender

    def close(self) -> None:
        for each in self._made:
            each.close()
