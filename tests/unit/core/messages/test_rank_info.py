"""A place, in the two forms in which Horovod knows it."""

from __future__ import annotations

import pytest
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.gloo_run import create_slot_env_vars
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.messages.rank_info import Place, place_of

PLACES = st.builds(Place, *[st.integers(0, 100_000)] * 6)


@given(PLACES)
def test_a_place_is_written_as_horovod_writes_it(place: Place) -> None:
    slot = SlotInfo(
        "host", place.rank, place.local_rank, place.cross_rank, place.size, place.local_size, place.cross_size
    )
    assert place.text() == slot.to_response_string()
    theirs = create_slot_env_vars(slot)
    assert place.environment().items() <= {name: str(value) for name, value in theirs.items()}.items()


@given(PLACES)
def test_what_was_written_is_read_again(place: Place) -> None:
    assert place_of(place.text()) == place


@pytest.mark.parametrize(
    "text", ["", "0", "0,1,0,1,0", "0,1,0,1,0,1,2", "-1,1,0,1,0,1", "a,1,0,1,0,1", "0,1,0,1,0,", "²,1,0,1,0,1"]
)
def test_what_is_no_place_is_read_as_none(text: str) -> None:
    assert place_of(text) is None
