"""The built-in signals: how clusters and clouds mark nodes and pods that are about to go. Data.

A new signal is one row here. Tests then require its row in ``docs/kubernetes.md`` and its case in
``tests/unit/discover/verdicts/test_signals.py``. The fields are those of :class:`discover.verdicts.signals.Signal`.
Rows name no effects of taints, because the keys are unique and some providers have changed the effects.
"""

from __future__ import annotations

from typing import Any, Final

from discover.verdicts.signals import Deadline, Evidence, Signal, SignalClass, Table

GONE, IMMINENT, ADVISORY, NOTE = SignalClass.GONE, SignalClass.IMMINENT, SignalClass.ADVISORY, SignalClass.NOTE
ABSENCE: Final = Evidence.ABSENCE
VALUE: Final = Deadline("epoch-value")
TAINT, CONDITION = "taint-time", "condition-time"


def _pod(name: str, kind: str, key: str, category: SignalClass, says: str, **more: Any) -> Signal:
    return Signal(name=name, object="pod", kind=kind, key=key, category=category, says=says, **more)


def _node(name: str, kind: str, key: str, category: SignalClass, says: str, **more: Any) -> Signal:
    return Signal(name=name, object="node", kind=kind, key=key, category=category, says=says, **more)


def _taint(name: str, key: str, category: SignalClass, says: str, **more: Any) -> Signal:
    return _node(name, "taint", key, category, says, **more)


def _job(name: str, key: str, says: str) -> Signal:
    return Signal(name=name, object="job", kind="annotation", key=key, category=NOTE, says=says)


# fmt: off
KUBERNETES: Final = (
    _pod("pod-deleted", "field", "deletionTimestamp", IMMINENT, "is being deleted", deadline=VALUE),
    _pod("pod-terminated-by-kubelet", "condition", "DisruptionTarget", GONE, "was ended by its kubelet",
         status="True", reasons=("TerminationByKubelet",)),
    _pod("pod-disruption", "condition", "DisruptionTarget", IMMINENT, "is about to be evicted", status="True",
         deadline=Deadline(CONDITION, grace=True)),
    _pod("pod-evicted", "field", "phase", GONE, "was evicted or shut down with its node", value="Failed",
         reasons=("Evicted", "Terminated")),
    _node("gke-spot-shutdown", "condition", "Ready", IMMINENT, "is a spot instance that GKE shuts down",
          status="False", message="node is shutting down", only_on=(("cloud.google.com/gke-spot", "true"),),
          deadline=Deadline(CONDITION, 15)),
    _node("node-shutdown", "condition", "Ready", IMMINENT, "is shutting down", status="False",
          message="node is shutting down"),
    _node("node-not-ready", "condition", "Ready", IMMINENT, "is not ready", status="False", evidence=ABSENCE),
    _node("node-unknown", "condition", "Ready", IMMINENT, "sends no status", status="Unknown", evidence=ABSENCE),
    _taint("node-unreachable", "node.kubernetes.io/unreachable", IMMINENT, "sends no status", evidence=ABSENCE),
    _taint("node-not-ready-taint", "node.kubernetes.io/not-ready", IMMINENT, "is not ready", evidence=ABSENCE),
    _taint("node-out-of-service", "node.kubernetes.io/out-of-service", GONE, "is out of service"),
    _taint("node-cloud-shutdown", "node.cloudprovider.kubernetes.io/shutdown", GONE, "is shut down, its cloud says"),
    _node("node-gone", "field", "exists", GONE, "does not exist any more", value="false", evidence=ABSENCE),
    _node("node-cordoned", "field", "unschedulable", ADVISORY, "is cordoned", value="true"),
    _taint("node-unschedulable", "node.kubernetes.io/unschedulable", ADVISORY, "is cordoned"),
    _taint("node-memory-pressure", "node.kubernetes.io/memory-pressure", ADVISORY, "is short of memory"),
    _taint("node-disk-pressure", "node.kubernetes.io/disk-pressure", ADVISORY, "is short of disk space"),
    _taint("node-pid-pressure", "node.kubernetes.io/pid-pressure", ADVISORY, "is short of process ids"),
    _taint("node-network", "node.kubernetes.io/network-unavailable", ADVISORY, "has no network"),
)

AUTOSCALERS: Final = (
    _taint("autoscaler-deleting", "ToBeDeletedByClusterAutoscaler", IMMINENT,
           "is being removed by Cluster Autoscaler", deadline=Deadline("epoch-value", grace=True)),
    _taint("autoscaler-candidate", "DeletionCandidateOfClusterAutoscaler", ADVISORY,
           "may be removed by Cluster Autoscaler"),
    _taint("karpenter-disrupted", "karpenter.sh/disrupted", IMMINENT, "is being removed by Karpenter"),
    _taint("karpenter-disrupting", "karpenter.sh/disruption", IMMINENT, "is being removed by Karpenter",
           value="disrupting"),
)

_NTH: Final = "aws-node-termination-handler"
_GKE: Final = "cloud.google.com"
_ARENA: Final = "job-supervisor.kube-ai.io"

CLOUDS: Final = (
    _taint("aws-spot", f"{_NTH}/spot-itn", IMMINENT, "is a spot instance that AWS takes back",
           deadline=Deadline(TAINT, 120)),
    _taint("aws-asg", f"{_NTH}/asg-lifecycle-termination", IMMINENT, "is being ended by its AWS auto scaling group"),
    _taint("aws-maintenance", f"{_NTH}/scheduled-maintenance", ADVISORY, "is due for maintenance by AWS"),
    _taint("aws-rebalance", f"{_NTH}/rebalance-recommendation", ADVISORY, "is likely to be taken back by AWS"),
    _taint("gke-termination", f"{_GKE}/impending-node-termination", IMMINENT, "is about to be ended by GKE"),
    _node("gke-maintenance-time", "label", f"{_GKE}/scheduled-maintenance-time", ADVISORY,
          "is due for maintenance by GKE", deadline=VALUE),
    _node("gke-maintenance-latest", "label", f"{_GKE}/scheduled-maintenance-time-latest", ADVISORY,
          "is due for maintenance by GKE", deadline=VALUE),
    _node("gke-maintenance-active", "label", f"{_GKE}/active-node-maintenance", IMMINENT,
          "is under maintenance by GKE", value="ONGOING"),
    _taint("gke-maintenance-window", f"{_GKE}/maintenance-window-started", ADVISORY, "is in GKE's maintenance window"),
    _taint("aks-remediation", "remediator.kubernetes.azure.com/unschedulable", IMMINENT, "is being taken back by AKS",
           deadline=Deadline(TAINT, 30)),
    _taint("aks-remediation-old", "remediator.aks.microsoft.com/unschedulable", IMMINENT,
           "is being taken back by AKS", deadline=Deadline(TAINT, 30)),
    _node("aks-event", "condition", "VMEventScheduled", ADVISORY, "is due for an event of Azure's scheduler",
          status="True"),
    _taint("oke-termination", "ignore-taint.cluster-autoscaler.kubernetes.io/oke-impending-node-termination",
           IMMINENT, "is about to be ended by OKE"),
    _pod("eci-expired", "condition", "ContainerInstanceExpired", IMMINENT,
         "is a spot container instance that Alibaba Cloud takes back", status="True",
         deadline=Deadline(CONDITION, 180)),
    _pod("eci-released", "condition", "ContainerInstanceCreated", IMMINENT,
         "is a spot container instance that Alibaba Cloud takes back", reasons=("SpotToBeReleased",),
         deadline=Deadline(CONDITION, 180)),
    _pod("eci-bid-failed", "field", "phase", GONE, "is a spot container instance that Alibaba Cloud has taken back",
         value="Failed", reasons=("BidFailed",)),
)

NOTES: Final = (
    _pod("acs-best-effort", "label", "alibabacloud.com/compute-qos", NOTE, "best effort", value="best-effort"),
    _node("aks-spot", "label", "kubernetes.azure.com/scalesetpriority", NOTE, "spot node", value="spot"),
    _node("gke-spot", "label", f"{_GKE}/gke-spot", NOTE, "spot node", value="true"),
    _node("karpenter-spot", "label", "karpenter.sh/capacity-type", NOTE, "spot node", value="spot"),
    _job("arena-spot", f"{_ARENA}/spot-instance", "runs on spot instances"),
    _job("arena-max-wait", f"{_ARENA}/max-wait-time", "waits only so long for resources"),
    _job("arena-status", f"{_ARENA}/job-status", "has a status of the job supervisor"),
    _job("arena-suspended", f"{_ARENA}/job-suspended", "is suspended"),
)
# fmt: on

BUILT_IN: Final = Table((*KUBERNETES, *AUTOSCALERS, *CLOUDS, *NOTES))
