"""How versions of objects compare."""

import pytest

from discover.pods.views import older


@pytest.mark.parametrize(
    ("version", "than", "is_older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("99999999999999999999", "100000000000000000000", True),
        *((odd, "10", False) for odd in ("", "abc", "0x1", "007", "-1", "٣")),
        *(("10", odd, False) for odd in ("", "abc", "0x1", "007", "-1", "٣")),
    ],
)
def test_versions_compare_as_numbers_of_any_length_and_others_not_at_all(version, than, is_older):
    assert older(version, than) is is_older
