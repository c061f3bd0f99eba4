"""Who gives way when all places are taken, and whose a client's address is."""

from dataclasses import dataclass

import pytest

from hvd_elastic_ext.core.connections import choose_to_close, source_of


@dataclass(frozen=True)
class Place:
    source: str
    since: float


@pytest.mark.parametrize(
    ("held", "leaving"),
    [
        ([], None),
        ([Place("a", 1)], Place("a", 1)),
        ([Place("a", 2), Place("a", 1), Place("a", 3)], Place("a", 1)),
        ([Place("b", 1), Place("a", 2), Place("a", 3)], Place("a", 2)),
        ([Place("b", 4), Place("a", 2), Place("a", 3), Place("b", 1), Place("b", 2)], Place("b", 1)),
        ([Place("b", 2), Place("a", 1)], Place("a", 1)),
    ],
    ids=["nobody", "the only one", "the oldest", "of the most", "of the most, the oldest", "as many: the oldest"],
)
def test_the_oldest_connection_of_the_source_with_most_is_closed(held, leaving):
    assert choose_to_close(held) == leaving


@pytest.mark.parametrize(
    ("address", "source"),
    [
        (("10.1.2.3", 4711), "10.1.2.3"),
        (("127.0.0.1", 1), "loopback"),
        (("127.9.9.9", 1), "loopback"),
        (("::1", 1, 0, 0), "loopback"),
        (("::ffff:127.0.0.2", 1, 0, 0), "loopback"),
        (("::ffff:10.1.2.3", 1, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_a_source_is_what_one_host_has_to_itself(address, source):
    assert source_of(address) == source
