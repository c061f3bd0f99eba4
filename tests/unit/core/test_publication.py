"""The two forms in which hosts travel, and what is said of text that is neither."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import BadHosts, BadPublication
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import (
    FORMAT,
    Departure,
    Publication,
    from_json,
    parse_hosts_line,
    parse_hosts_option,
    parse_hosts_text,
    parse_mpi_text,
    render_hosts_text,
    to_json,
)
from tests.unit.core import strategies as some

BAD_LINES = {
    "host:0": "at least 1",
    "host:-1": "whole number of at least 1",
    "host:x": "whole number of at least 1",
    "host:": "whole number of at least 1",
    "host:1.5": "whole number of at least 1",
    "host:²": "whole number of at least 1",
    "host:٣": "whole number of at least 1",
    "host:+1": "whole number of at least 1",
    "host:1025": "the most allowed is 1024",
    "host:" + "9" * 5000: "the most allowed is 1024",
    "host": "write host:N",
    "host :2": "white space",
    "host: 2": "white space",
    "host slots=2": "write host:2",
    "host slots=2  # here": "write host:2",
    "host slots=2 max_slots=4": "write host:2",
    "host max_slots=4 slots=2": "write host:2",
    "host max_slots=4": "white space",
    "host \t slots = 2 ": "write host:2",
    "host slots": "white space",
    ":2": "host name is empty",
    "-oProxyCommand=reboot:1": "would be read as an option",
    "höst:1": "xn--",
    "::1:2": "IPv6",
    "[::1]:2": "IPv6",
    "x" * 300 + ":1": "300 characters",
    "a,b:1": "not a valid name",
    "a\x00b:1": "not a valid name",
    "a\x85b:1": "white space",
    "x" * 100_000 + " :1": "white space",
}


def outcome(read, *arguments, **named):
    """``(value, None)`` or ``(None, the error raised on purpose)``."""
    try:
        return read(*arguments, **named), None
    except (BadHosts, BadPublication) as error:
        return None, error


def slots_only(hosts: HostSet) -> HostSet:
    return HostSet.of(hosts.as_slots())


@given(some.host_sets)
def test_a_hosts_file_reads_back_as_it_was_written(hosts):
    assert parse_hosts_text(render_hosts_text(hosts), where="f") == slots_only(hosts)


def test_a_byte_order_mark_at_the_start_is_no_part_of_the_first_name():
    assert parse_hosts_text("\ufeffa:1\r\nb:2\r\n", where="f") == HostSet.of({"a": 1, "b": 2})
    with pytest.raises(BadHosts, match=r"f:2: .*not ASCII"):
        parse_hosts_text("a:1\n\ufeffb:2\n", where="f")


@given(some.host_sets)
def test_a_hosts_file_holds_bare_lines_that_horovod_reads_too(hosts):
    lines = render_hosts_text(hosts).splitlines()
    assert [tuple(line.split(":")) for line in lines] == [(host.name, str(host.slots)) for host in hosts]


@given(some.host_sets.filter(len))
def test_a_hosts_option_reads_as_the_file_does(hosts):
    option = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    assert parse_hosts_option(option, where="--hosts") == slots_only(hosts)


@given(some.publications())
def test_a_push_reads_back_as_it_was_written(publication):
    text = to_json(publication)
    assert "\n" not in text
    assert from_json(text, where="push") == publication
    assert from_json(text.encode(), where="push") == publication


def test_whatever_a_source_knows_of_a_host_is_published():
    some_fact = {str: "something", int: 7, float: 2.5}
    facts = {f.name: some_fact[type(f.default)] for f in fields(Host) if f.name not in ("name", "slots")}
    publication = Publication("a source", 1, HostSet((Host("a", 1, **facts), Host("b", 1))))
    assert from_json(to_json(publication), where="here") == publication


@given(some.publications(), st.dictionaries(st.text(max_size=5).map("x-".__add__), st.integers(), max_size=3))
def test_keys_of_a_later_release_are_ignored(publication, more):
    document = {**json.loads(to_json(publication)), **more}
    document["hosts"] = [{**host, **more} for host in document["hosts"]]
    document["departing"] = [{**entry, **more} for entry in document["departing"]]
    assert from_json(json.dumps(document), where="push") == publication


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: ascii(line[:30]))
def test_a_bad_line_is_named_by_file_and_number_in_one_short_line(line):
    with pytest.raises(BadHosts) as caught:
        parse_hosts_text(f"# hosts\na:1\n{line}\nb:1\n", where="/etc/hosts.list")
    message = str(caught.value)
    assert message.startswith("/etc/hosts.list:3: ")
    assert BAD_LINES[line] in message
    assert "\n" not in message
    assert len(message) < 500
    assert (caught.value.where, caught.value.line, caught.value.more) == ("/etc/hosts.list", 3, 0)


def test_a_bad_part_of_an_option_is_named_by_the_option():
    with pytest.raises(BadHosts, match=r"^--hosts: ") as caught:
        parse_hosts_option("a:1,host:0", where="--hosts")
    assert caught.value.line is None


def test_a_host_listed_twice_is_named_with_both_lines():
    with pytest.raises(BadHosts, match=r"f:4: host 'a' was listed in line 2 already"):
        parse_hosts_text("\na:1\nb:1\na:2\n", where="f")


def test_further_bad_lines_are_counted():
    with pytest.raises(BadHosts, match=r"f:1: .* \(and 1 more bad line\)$"):
        parse_hosts_text("a:0\nb:1\nc:x\n", where="f")
    with pytest.raises(BadHosts, match=r"\(and 2 more bad lines\)$"):
        parse_hosts_text("a:0\nb:0\nb:1\nb:2", where="f")


@given(st.text(max_size=200))
def test_any_text_is_either_hosts_or_one_clear_error(text):
    hosts, error = outcome(parse_hosts_text, text, where="f")
    if error is None:
        assert parse_hosts_text(render_hosts_text(hosts), where="f") == hosts
    else:
        assert text.split("\n")[error.line - 1].strip() != ""
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("# a:1\r\n\r\n   \nb:2\r\nc:3", {"b": 2, "c": 3}),
        ("a:1  \n b:2\t\n", {"a": 1, "b": 2}),
        ("  # two\na:1   # the first\nb:2# the last \r\n", {"a": 1, "b": 2}),
    ],
)
def test_comments_blank_lines_and_blanks_at_the_ends_of_lines_are_passed_over(text, hosts):
    assert parse_hosts_text(text, where="f") == HostSet.of(hosts)
    as_mpi = text.replace(":", " slots=")
    assert parse_mpi_text(as_mpi, where="f") == HostSet.of(hosts)


def test_blanks_between_the_hosts_of_an_option_are_passed_over():
    assert parse_hosts_option("a:1, b:2", where="-H") == HostSet.of({"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("line", "slots"),
    [("a slots=2 max_slots=4", 2), ("a max_slots=4 slots=2", 2), ("a\tslots = 2", 2), ("a  slots=2", 2)],
)
def test_a_host_of_mpirun_may_have_other_words_in_its_line(line, slots):
    assert parse_mpi_text(line, where="f") == HostSet.of({"a": slots})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a:2  # here", "'a:2' is a line for --hosts-file; write 'a slots=2', or give the file as --hosts-file"),
        ("a", "'a' has no slots; write 'a slots=N', N being how many processes it runs"),
        ("a max_slots=2", "'a max_slots=2' cannot be read; write lines of the form 'name slots=N'"),
        ("a slots=", "host 'a' has slots ''; write a whole number of at least 1"),
        ("a slots=two", "host 'a' has slots 'two'; write a whole number of at least 1"),
        ("a slots=0", "host 'a' has 0 slots; at least 1 is needed"),
        ("::1 slots=1", "host name '::1' contains ':'; IPv6 addresses cannot be used"),
        ("-oProxyCommand=reboot slots=1", "would be read as an option"),
        ("b slots=2", "host 'b' was listed in line 2 already; give each host once"),
    ],
)
def test_a_bad_line_of_a_host_file_is_named_with_what_to_write(line, said):
    with pytest.raises(BadHosts) as caught:
        parse_mpi_text(f"# of mpirun\nb slots=1\n\n{line}\n", where="--hostfile h")
    assert str(caught.value).startswith("--hostfile h:4: ")
    assert said in str(caught.value)


def test_a_bare_host_gets_the_default_slots_where_there_are_any():
    assert parse_hosts_line("a", default_slots=3) == Host("a", 3)
    assert parse_hosts_line("a:1", default_slots=3) == Host("a", 1)


BAD_PUSHES = {
    "": "not JSON",
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    "[]": "not list",
    "null": "not NoneType",
    "{}": "publication format None",
    '{"format":2}': "use the same release",
    '{"format":"1"}': "publication format '1'",
}


@pytest.mark.parametrize("text", BAD_PUSHES, ids=lambda text: text[:20])
def test_what_is_no_push_is_refused_and_named(text):
    with pytest.raises(BadPublication, match=r"^the socket: ") as caught:
        from_json(text, where="the socket")
    assert BAD_PUSHES[text] in str(caught.value)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(BadPublication, match="not JSON"):
        from_json(b'{"format":\xff\xfe}', where="push")


BAD_PARTS = [
    ({"source": 1}, "'source' must be str"),
    ({"sequence": True}, "'sequence' must be int"),
    ({"sequence": 1.0}, "'sequence' must be int"),
    ({"sequence": "x" * 10_000}, "10002 characters"),
    ({"hosts": {}}, "'hosts' must be list"),
    ({"hosts": [1]}, "a host is a JSON object"),
    ({"hosts": [{"name": "a"}]}, "'slots' must be int"),
    ({"hosts": [{"name": "a", "slots": 0}]}, "at least 1"),
    ({"hosts": [{"name": "a", "slots": 10**20}]}, "more slots than the 1024 that are allowed"),
    ({"hosts": [{"name": "-a", "slots": 1}]}, "would be read as an option"),
    ({"hosts": [{"name": "a", "slots": 1, "uid": None}]}, "'uid' must be str"),
    ({"hosts": [{"name": "a", "slots": 1}] * 2}, "listed twice"),
    ({"departing": ["a"]}, "a departure is a JSON object"),
    ({"departing": [{"host": "-a"}]}, "would be read as an option"),
    ({"departing": [{"host": "b", "deadline": "soon"}]}, "not a number of Unix seconds"),
    ({"departing": [{"host": "b", "deadline": True}]}, "not a number of Unix seconds"),
    ({"departing": [{"host": "b", "deadline": float("nan")}]}, "not a number of Unix seconds"),
    ({"departing": [{"host": "b", "deadline": float("inf")}]}, "not a number of Unix seconds"),
    ({"departing": [{"host": "b", "deadline": 10**400}]}, "not a number of Unix seconds"),
    ({"hosts": [{"name": "b", "slots": 1}], "departing": [{"host": "b"}]}, "usable and as departing"),
]


@pytest.mark.parametrize(("part", "why"), BAD_PARTS, ids=lambda value: str(value)[:40])
def test_a_wrong_part_of_a_push_is_named(part, why):
    whole = {"format": FORMAT, "source": "s", "sequence": 1, "hosts": [], "departing": []}
    with pytest.raises(BadPublication, match=why) as caught:
        from_json(json.dumps({**whole, **part}), where="push")
    assert len(str(caught.value)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"format": st.just(FORMAT)}, optional=dict.fromkeys(["source", "sequence", "hosts", "departing"], json_values)
    )
)
def test_any_json_is_either_a_publication_or_one_clear_error(document):
    publication, error = outcome(from_json, json.dumps(document), where="push")
    if error is None:
        assert from_json(to_json(publication), where="push") == publication
    else:
        assert "\n" not in str(error)


NO_HOSTS = HostSet()


def publication(source="s", sequence=1, hosts=NO_HOSTS, departing=()):
    return Publication(source, sequence, hosts, departing)


@given(st.lists(st.integers(0, 5), min_size=1))
def test_late_and_repeated_pushes_of_one_source_lose(sequences):
    newest = None
    for sequence in sequences:
        pushed = publication(sequence=sequence)
        if pushed.supersedes(newest):
            newest = pushed
    assert newest.sequence == max(sequences)


def test_a_new_source_wins_whatever_its_sequence():
    assert publication("new life", 0).supersedes(publication("old life", 99))
    assert publication().supersedes(None)


def test_who_said_it_and_when_is_no_news():
    hosts, going = HostSet.of({"a": 1}), (Departure("b", "drained", 5.0),)
    said = publication("x", 1, hosts, going)
    assert said.has_same_content(publication("y", 2, hosts, going))
    assert not said.has_same_content(publication("x", 1, hosts))
    assert not said.has_same_content(publication("x", 1, HostSet.of({"a": 2}), going))
    assert not said.has_same_content(None)
