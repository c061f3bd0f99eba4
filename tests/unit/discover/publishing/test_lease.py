"""A Lease as a daemon reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from discover.publishing.lease import LASTS, lease_record


def lease(version: str, **spec: Any) -> Mapping[str, Any]:
    return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "other", **spec}}


def test_a_lease_expires_by_when_its_version_was_first_seen_and_not_by_its_own_times() -> None:
    first = lease_record(lease("1", renewTime="1999-01-01T00:00:00Z"), before=None, now=100.0)
    assert lease_record(lease("1"), before=first, now=120.0).since == 100.0
    assert lease_record(lease("2"), before=first, now=120.0).since == 120.0


@given(st.dictionaries(st.sampled_from(["holderIdentity", "leaseDurationSeconds", "leaseTransitions"]), st.none()))
def test_a_lease_without_its_fields_is_free(spec: dict[str, Any]) -> None:
    found = lease_record({"metadata": {"resourceVersion": "1"}, "spec": spec}, before=None, now=0.0)
    assert (found.holder, found.lasts) == ("", LASTS)
