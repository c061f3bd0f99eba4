from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.format.manifest import age, identity_of, is_file_name, name_of
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import Permanent

counts = st.integers(0, (1 << 63) - 1)
identities = st.builds(Identity, counts, counts, counts, counts)
small = st.integers(0, 99_999)
usual = st.builds(Identity, counts, small, small, small)


@given(identities)
def test_a_name_tells_its_identity(identity: Identity) -> None:
    assert identity_of(name_of(identity)) == identity
    assert is_file_name(name_of(identity))


@given(st.lists(usual, min_size=2))
def test_names_in_the_order_of_text_are_in_the_order_of_age(many: list[Identity]) -> None:
    assert sorted(map(name_of, many)) == [name_of(identity) for identity in sorted(many, key=age)]


@pytest.mark.parametrize(
    "name",
    [
        "", "..", "manifest.json", "000001-000002-000000003", "000001-000002-000000003-75bcd15",
        "000001-000002-000000003-00000000075BCD15", "0000001-000002-000000003-00000000075bcd15",
        "000001-000002-000000003-ffffffffffffffff", "../01-000002-000000003-00000000075bcd15",
        "٠٠٠٠٠١-000002-000000003-00000000075bcd15", "000001-000002-000000003-00000000075bcd15\n",
    ],
)  # fmt: skip
def test_a_name_that_no_checkpoint_has_gives_no_identity(name: str) -> None:
    assert identity_of(name) is None


@given(st.text())
def test_any_text_is_a_name_or_none(text: str) -> None:
    identity = identity_of(text)
    assert identity is None or name_of(identity) == text


@pytest.mark.parametrize("identity", [Identity(-1, 0, 0, 0), Identity(1, 0, 0, 1 << 63)])
def test_what_is_no_identity_has_no_name(identity: Identity) -> None:
    with pytest.raises(Permanent, match="not a commit's identity"):
        name_of(identity)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "a" * 201, 7, None])
def test_a_path_is_no_file_name(name: object) -> None:
    assert not is_file_name(name)
