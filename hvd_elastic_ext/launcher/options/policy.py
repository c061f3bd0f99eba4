"""The part of a job's options that the driver uses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hvd_elastic_ext.core.engines import ENGINES
from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.launcher.rules.membership.next_world import LISTED_S, SETTLE_S, WorldLimits
from hvd_elastic_ext.launcher.state.options import JobOptions


def options_of(settings: RunSettings, *, woken: bool = False) -> JobOptions:
    """``woken``: the job has slept, or failed, so ``--min-np`` processes suffice."""
    s = settings
    start = s.min_num_proc if woken else s.num_proc
    settle_s = SETTLE_S if s.settle_s is None else s.settle_s
    listed_s = LISTED_S if s.settle_s is None and ENGINES[s.engine].in_place else None
    own: dict[str, Any] = {
        "limits": WorldLimits(start, s.min_num_proc, s.max_num_proc, s.allowed_sizes, settle_s, listed_s),
        "sleep_after_s": s.sleep_after_s if s.below_min == "sleep" else None,
        "woken": woken,
        "output": None if s.output_dir is None else str(s.output_dir.absolute()),
        "all_slots_of": None if woken and s.min_num_proc < s.num_proc else s.all_slots_of,
    }
    same = {field.name: getattr(s, field.name) for field in fields(JobOptions) if field.name not in own}
    return JobOptions(**own, **same)
