"""The cases by name, in the order in which they run.

Belongs here: what is measured, and its bar; ``resize`` for starts of jobs and changes of hosts, ``state`` for commits
and checkpoints, ``daemon`` for ``hvd-discover``, ``clusters`` for ``submit`` and similar commands, ``dashboard``.

Never here: a verdict on a measurement.
"""

from __future__ import annotations

from typing import Final

from benchmarks.cases.clusters import logs, submit
from benchmarks.cases.daemon import cluster, cluster_outage, discover_script
from benchmarks.cases.dashboard import browser, launcher, server
from benchmarks.cases.resize import (
    autoscale_real,
    beside_training,
    constant_failure,
    first_step,
    growth,
    hosts_change_to_driver,
    hosts_change_to_workers,
    join_crowded,
    large_job,
    shrink,
    spare,
    successor,
    torch_in_place,
    with_tensorflow,
)
from benchmarks.cases.state import (
    autoscale,
    calls,
    checkpoint,
    checkpoint_interval,
    checkpoint_stall,
    in_process,
    recommended,
    replay_notes,
    simulate,
    simulated_spot_trace,
    spot_trace,
    unlike_ranks,
)
from benchmarks.model import Case

CASES: Final[tuple[Case, ...]] = (
    first_step.CASE,
    hosts_change_to_driver.CASE,
    hosts_change_to_workers.CASE,
    *growth.CASES,
    *shrink.CASES,
    constant_failure.CASE,
    spare.CASE,
    spare.IN_PLACE,
    successor.CASE,
    *torch_in_place.CASES,
    *with_tensorflow.CASES,
    beside_training.CASE,
    large_job.CASE,
    join_crowded.CASE,
    *in_process.CASES,
    *calls.CASES,
    checkpoint.CASE,
    in_process.SYNC_CASE,
    unlike_ranks.CASE,
    replay_notes.CASE,
    checkpoint_stall.CASE,
    checkpoint_interval.CASE,
    autoscale.CASE,
    autoscale_real.CASE,
    spot_trace.CASE,
    simulated_spot_trace.CASE,
    recommended.CASE,
    *cluster.CASES,
    discover_script.CASE,
    cluster_outage.CASE,
    submit.CASE,
    logs.CASE,
    simulate.THOUSAND,
    simulate.TEN_THOUSAND,
    server.CASE,
    browser.CASE,
    launcher.CASE,
)
