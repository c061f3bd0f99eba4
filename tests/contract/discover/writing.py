"""What writes to our API server, over the real client, under the rights of the manifests; time is virtual."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from discover.kube.cluster import Cluster, Timeouts
from discover.kube.collection import Sender
from discover.publishing.configmap import ConfigMap
from discover.publishing.lease import Lease
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Departure, Publication
from hvd_elastic_ext.io.kube.access import Access
from tests.support.clock import ManualClock
from tests.support.kube.server import KubeServer
from tests.support.manifests import documents

NAME = "digits-hosts"
ACCOUNT = "hvd-launcher-digits"


class Writing:
    """One server, and daemons that may do what ``files`` of the manifests allow; without any, everything."""

    def __init__(self, kube: KubeServer, folder: Path, *files: str, read: float = 10.0) -> None:
        self.kube = kube
        self.clock = ManualClock()
        self.dead: set[str] = set()
        self.written = 0
        self._folder = folder
        self._timeouts = Timeouts(connect=5.0, of_list=read)
        self._token = kube.access.issue_for("default", ACCOUNT) if files else None
        self._numbers = itertools.count()
        kube.apply(each for file in files for each in documents(file) if each["kind"] != "Deployment")
        self._made: list[Sender] = []

    def sender(self) -> Sender:
        config = self.kube.kubeconfig(self._folder / f"kubeconfig-{next(self._numbers)}", token=self._token)
        sender = Cluster(Access(str(config)), timeouts=self._timeouts).sender()
        self._made.append(sender)
        return sender

    def configmap(self, me: str = "one", *, clock: Clock | None = None) -> ConfigMap:
        sender, clock = self.sender(), clock or self.clock
        where = f"configmap default/{NAME}"
        lease = Lease(sender, namespace="default", name=NAME, me=me, of=where, clock=clock)
        return ConfigMap(
            sender,
            lease,
            namespace="default",
            name=NAME,
            alive=lambda host: host.name not in self.dead,
            clock=clock,
            wrote=self._count,
        )

    def _count(self) -> None:
        self.written += 1

    def data(self) -> dict[str, str]:
        found: dict[str, str] = self.kube.get("configmaps", NAME).get("data") or {}
        return found

    def hosts(self) -> list[str] | None:
        try:
            text = self.data().get("hosts")
        except KeyError:
            return None
        return None if text is None else text.split()

    def close(self) -> None:
        for each in self._made:
            each.close()


def publication(sequence: int, hosts: Iterable[str], *, departing: Iterable[Departure] = ()) -> Publication:
    return Publication("life", sequence, HostSet.of(dict.fromkeys(hosts, 1)), tuple(departing))
