"""The result of the latest look at the cluster, for actions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from discover.pods.operators import JobView
from discover.pods.views import Key, NodeView
from discover.verdicts.verdicts import Verdict
from hvd_elastic_ext.core.hosts import Host


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One look at the cluster."""

    verdicts: tuple[Verdict, ...] = ()
    published: Mapping[str, Host] = field(default_factory=dict)
    """Hosts by the UID of their pods."""
    notes: Mapping[Key, str] = field(default_factory=dict)
    """Further reasons why a pod is not a host."""
    nodes: Mapping[str, NodeView] | None = None
    """None if the daemon may not read them."""
    job: JobView | None = None
    """None if it is not known."""
    advice: str = ""
    """The part of a failed pod's reason that tells people what to do."""

    def owns(self, verdict: Verdict) -> bool:
        """Whether a pod belongs to the job: by its controller if the job is known, else by its labels alone."""
        return self.job is None or not self.job.uid or verdict.pod.owner == self.job.uid

    def reason(self, verdict: Verdict) -> str:
        """Return every reason why a pod is not a host, in one line, without the advice."""
        reason = verdict.reason.removesuffix(f"; {self.advice}") if self.advice else verdict.reason
        return "; ".join(filter(None, [reason, self.notes.get(verdict.pod.key, "")]))
