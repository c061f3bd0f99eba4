"""The options of a job as JSON, for a recording of its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.membership.next_world import WorldLimits
from hvd_elastic_ext.launcher.state.options import JobOptions, ScaleOptions


def to_json(options: JobOptions) -> dict[str, Any]:
    """The options of a job as JSON."""
    plain = {field.name: getattr(options, field.name) for field in fields(JobOptions)}
    nested = {name: plain[name] for name in ("limits", "durability", "commit_every", "scaling")}
    return {**plain, **{name: None if value is None else asdict(value) for name, value in nested.items()}}


def from_json(data: Mapping[str, Any]) -> JobOptions:
    """The options that :func:`to_json` wrote. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for others."""
    limits = WorldLimits(**{**data["limits"], "allowed": tuple(data["limits"]["allowed"])})
    how, cadence, scaling = data["durability"], data["commit_every"], data.get("scaling")
    return JobOptions(
        **{
            **data,
            "limits": limits,
            "cooldown_s": tuple(data["cooldown_s"]),
            "durability": None if how is None else Durability(**{**how, "every": Cadence(**how["every"])}),
            "commit_every": None if cadence is None else Cadence(**cadence),
            "scaling": None if scaling is None else ScaleOptions(**scaling),
        }
    )
