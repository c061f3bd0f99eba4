"""Hosts and publications as hypothesis draws them."""

import string

from hypothesis import strategies as st

from hvd_elastic_ext.core.hosts import MAX_SLOTS, Host, HostSet
from hvd_elastic_ext.core.publication import Departure, Publication

OUTER = string.ascii_letters + string.digits + "_"

labels = st.builds(
    lambda first, inner, last: first + inner + last if inner else first,
    st.sampled_from(OUTER),
    st.text(OUTER + "-", max_size=20),
    st.sampled_from(OUTER),
)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)
hosts = st.builds(
    Host,
    names,
    st.integers(1, MAX_SLOTS),
    uid=st.text(max_size=8) | st.just(""),
    node=st.text(max_size=8),
    life=st.text(max_size=8),
)
host_sets = st.lists(hosts, max_size=6, unique_by=lambda host: host.name).map(lambda drawn: HostSet(tuple(drawn)))

few_names = st.sampled_from(["a", "b", "c", "d"])
few_hosts = st.builds(
    Host, few_names, st.integers(1, 4), uid=st.sampled_from(["", "u1", "u2"]), life=st.sampled_from(["", "l1", "l2"])
)
small_sets = st.lists(few_hosts, max_size=4, unique_by=lambda host: host.name).map(lambda drawn: HostSet(tuple(drawn)))
"""Sets that overlap often, for what is said of two of them."""


@st.composite
def publications(draw):
    usable = draw(host_sets)
    going = draw(st.lists(names.filter(lambda name: name not in usable), max_size=3))
    deadlines = st.none() | st.floats(-1e11, 1e11)
    departing = tuple(Departure(name, draw(st.text(max_size=10)), draw(deadlines)) for name in going)
    return Publication(draw(st.text(max_size=10)), draw(st.integers()), usable, departing)
