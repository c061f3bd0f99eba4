"""The cases by name, in the order in which they run. A case measures; it never decides what is good enough."""

from __future__ import annotations

from typing import Final

from benchmarks.cases import (
    check,
    checkpoint,
    cluster,
    cluster_peers,
    commit,
    crowded,
    growth,
    hosts_change,
    interval,
    kill,
    large_job,
    link_cut,
    outage,
    removal,
    sealing,
    spot_trace,
    strangers,
    sync,
    told,
)
from benchmarks.model import Case

CASES: Final[tuple[Case, ...]] = (
    hosts_change.CASE,
    told.CASE,
    *growth.CASES,
    kill.case(2, repeats=15),
    kill.case(3, repeats=5),
    link_cut.CASE,
    removal.CASE,
    crowded.CASE,
    large_job.CASE,
    strangers.CASE,
    *commit.CASES,
    *check.CASES,
    checkpoint.CASE,
    sync.CASE,
    sealing.CASE,
    interval.CASE,
    spot_trace.CASE,
    *cluster.CASES,
    cluster_peers.CASE,
    outage.CASE,
)
