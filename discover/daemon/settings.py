"""The daemon's settings: frozen groups, checked when they are made. No I/O."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from discover.pods.operators import GPUS, OBJECT_NAME, HostRules, check_job, check_slots, operator_named, selector_of
from discover.publish.outputs import Outputs
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import parse_hosts_option
from hvd_elastic_ext.io.kube.paths import is_label


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Follow the file ``watch``. A name without slots gets ``slots``, or is an error if that is None."""

    watch: Path
    slots: int | None = None
    kind: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        check_slots(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """Always publish ``hosts``."""

    hosts: HostSet
    kind: ClassVar[str] = "static"

    @classmethod
    def parse(cls, hosts: str, *, slots: int | None = None) -> StaticSettings:
        """Parse ``hosts``, as in ``a:4,b:4``; a name without slots gets ``slots``. Raises :class:`BadHosts` or
        :class:`UsageError`.
        """
        check_slots(slots)
        return cls(hosts=parse_hosts_option(hosts, where="--hosts", default_slots=slots))


SETTLE: Final = 0.5
"""Seconds for which new hosts are collected, so that hosts that come together are published together."""

LONGEST_SETTLE: Final = 600.0
_SELECTOR: Final = re.compile(r"[A-Za-z0-9._/=!,() -]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Follow the pods of ``job``, made by ``operator``, or those of ``selector``.

    Raises :class:`UsageError`.
    """

    job: str = ""
    operator: str = "mpi"
    namespace: str | None = None
    """None is that of the credentials."""
    selector: str = ""
    slots: int | None = None
    host_name: str = ""
    domain: str = ""
    container: str = ""
    gpu_resources: tuple[str, ...] = ()
    """Further resources whose limits count as slots."""
    kubeconfig: Path | None = None
    """None is the pod's own account, or the user's file."""
    probe: int | None = 22
    """The TCP port that a new host must answer on; None probes no host."""
    signals: Path | None = None
    """A file of further signals."""
    settle: float = SETTLE
    """Seconds for which new hosts are collected."""
    node_selector: str = ""
    """Labels of the nodes to watch; "" is all nodes."""
    exit_with: str = ""
    """A container of the daemon's own pod: the daemon ends when this container ends."""
    own_pod: str = ""
    """The pod that the daemon runs in; "" is the pod with the name of this host."""
    events: bool = True
    """Report pods that run and are not hosts, in Events about the job."""
    reap: bool = False
    """Delete pods of the job that have failed, or whose node shuts down."""
    kind: ClassVar[str] = "kubernetes"

    def __post_init__(self) -> None:
        rules = self.rules
        if self.namespace is not None and not is_label(self.namespace):
            raise UsageError(f"--namespace {self.namespace!r}: small letters, digits and inner '-', at most 63")
        for option, value in (("--selector", self.selector), ("--node-selector", self.node_selector)):
            if value and not _SELECTOR.fullmatch(value):
                raise UsageError(f"{option} {value!r} is not a label selector; write LABEL=VALUE[,LABEL=VALUE…]")
        if not (math.isfinite(self.settle) and 0 <= self.settle <= LONGEST_SETTLE):
            raise UsageError(f"--settle {self.settle:g}: write seconds from 0 to {LONGEST_SETTLE:g}")
        for option, name in (("--exit-with-container", self.exit_with), ("--own-pod", self.own_pod)):
            if name and not OBJECT_NAME.fullmatch(name):
                raise UsageError(f"{option} {name!r}: small letters, digits and inner '-' or '.', at most 253")
        if self.job:
            check_job(self.job)
        if rules.operator.selects_pods and not self.selector:
            if not self.job:
                raise UsageError(f"--operator {self.operator} needs the {rules.operator.kind}'s name; give --job NAME")
            return
        selector_of(rules.operator, job=self.job, own=self.selector)

    @property
    def rules(self) -> HostRules:
        """The rules by which pods become hosts. Raises :class:`UsageError` if the options make none."""
        return HostRules(
            operator=operator_named(self.operator),
            slots=self.slots,
            host_name=self.host_name,
            domain=self.domain,
            container=self.container,
            resources=(*GPUS, *self.gpu_resources),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings."""

    source: FileSettings | StaticSettings | KubernetesSettings
    outputs: Outputs
    once: bool = False
    """Look and publish once, and print the result in the form ``output``, ``table`` or ``json``."""
    output: str = "table"

    def __post_init__(self) -> None:
        outputs = self.outputs
        if self.once and outputs.listen:
            raise UsageError("--once does not serve HTTP; leave --listen out, or run without --once")
        if not self.once and not outputs.written and not outputs.listen:
            raise UsageError(
                "nowhere to publish to; give --publish-to PATH, --listen ADDRESS or both, or --once to look"
            )
        if isinstance(self.source, FileSettings) and self.source.watch in outputs.written:
            raise UsageError(f"--watch {self.source.watch} is also written to; watch one file and publish to another")
