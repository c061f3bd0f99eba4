"""Who may write, of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.publishing.lease import Claim, LeaseLimits, LeaseRecord, claim, lease_record

LIMITS = LeaseLimits(lasts=30.0, renew=10.0)


def held(holder: str = "other", *, since: float = 100.0, lasts: float = 30.0) -> LeaseRecord:
    return LeaseRecord(holder, "7", lasts, since)


@pytest.mark.parametrize(
    ("now", "found", "wanted"),
    [
        (100.0, None, Claim.TAKE),
        (100.0, held(""), Claim.TAKE),
        (100.0, held("me"), Claim.KEEP),
        (109.9, held("me"), Claim.KEEP),
        (110.0, held("me"), Claim.RENEW),
        (100.0, held(), Claim.WAIT),
        (129.9, held(), Claim.WAIT),
        (130.0, held(), Claim.TAKE),
        (159.0, held(lasts=60.0), Claim.WAIT),
        (160.0, held(lasts=60.0), Claim.TAKE),
    ],
)
def test_a_lease_is_kept_renewed_taken_or_waited_for(now: float, found: LeaseRecord | None, wanted: Claim) -> None:
    assert claim(now, "me", found, limits=LIMITS) is wanted


def lease(version: str, holder: str | None = "other", **spec: Any) -> Mapping[str, Any]:
    named = {} if holder is None else {"holderIdentity": holder}
    return {"metadata": {"resourceVersion": version}, "spec": {"leaseDurationSeconds": 30, **named, **spec}}


def test_a_lease_expires_by_when_its_version_was_first_seen_and_not_by_its_own_times() -> None:
    first = lease_record(lease("1", renewTime="1999-01-01T00:00:00Z"), before=None, now=100.0)
    assert lease_record(lease("1"), before=first, now=120.0).since == 100.0
    assert lease_record(lease("2"), before=first, now=120.0).since == 120.0


@given(st.dictionaries(st.sampled_from(["holderIdentity", "leaseDurationSeconds", "leaseTransitions"]), st.none()))
def test_a_lease_without_its_fields_is_free(spec: dict[str, Any]) -> None:
    found = lease_record({"metadata": {"resourceVersion": "1"}, "spec": spec}, before=None, now=0.0)
    assert found.holder == ""
    assert claim(0.0, "me", found, limits=LIMITS) is Claim.TAKE


def test_it_has_to_be_renewed_before_it_ends() -> None:
    with pytest.raises(ValueError, match="renewed before"):
        LeaseLimits(lasts=10.0, renew=10.0)
