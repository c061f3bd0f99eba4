"""What holds of the look at every cloud: silence, notice, its end; and nothing that is no answer is taken for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hvd_elastic_ext.agent.metadata.alibaba import Alibaba
from hvd_elastic_ext.agent.metadata.aws import Aws
from hvd_elastic_ext.agent.metadata.azure import Azure
from hvd_elastic_ext.agent.metadata.gcp import Gcp
from hvd_elastic_ext.agent.metadata.http import MAX_BODY, HttpClient
from hvd_elastic_ext.agent.metadata.model import Announcement, Cloud, NoAnswer
from hvd_elastic_ext.agent.metadata.poller import going
from tests.support.metadata import AlibabaService, AwsService, AzureService, GcpService, MetadataServer


@dataclass(frozen=True)
class Kind:
    service: Callable[[], Any]
    cloud: Callable[[], Cloud]
    give: Callable[[Any], None]
    """Takes the machine back."""
    within_s: float
    """How much time that leaves."""


KINDS = {
    "aws": Kind(AwsService, Aws, lambda service: service.interrupt(), 120.0),
    "gcp": Kind(GcpService, Gcp, lambda service: service.preempt(), 30.0),
    "azure": Kind(AzureService, Azure, lambda service: service.schedule("Preempt"), 30.0),
    "alibaba": Kind(AlibabaService, Alibaba, lambda service: service.interrupt(), 300.0),
    "alibaba, hardened": Kind(
        lambda: AlibabaService(hardened=True), Alibaba, lambda service: service.interrupt(), 300.0
    ),
    "alibaba, hardened by 401": Kind(
        lambda: AlibabaService(hardened=True, refusal=401), Alibaba, lambda service: service.interrupt(), 300.0
    ),
}


class Looking:
    """One cloud, asked at its stand-in."""

    def __init__(self, kind: Kind, server: MetadataServer[Any]) -> None:
        self.kind, self.server = kind, server
        self.cloud = kind.cloud()
        self.web = HttpClient(server.url)

    def give(self) -> None:
        self.kind.give(self.server.service)

    def look(self) -> list[Announcement]:
        return self.cloud.look(self.web)

    def left_s(self, announcement: Announcement) -> float:
        """Seconds from now that the notice of a word tells of."""
        now = time.time()
        by = going(announcement, now, self.web.ahead_s).by
        assert by is not None
        return by - now


@pytest.fixture(params=KINDS)
def looking(request: pytest.FixtureRequest) -> Iterator[Looking]:
    kind = KINDS[request.param]
    with MetadataServer(kind.service()) as server:
        yield Looking(kind, server)


def test_a_machine_that_is_taken_back_is_told_until_that_is_called_off(looking: Looking) -> None:
    assert looking.look() == []
    looking.give()
    (announcement,) = looking.look()
    assert not announcement.soft
    assert looking.kind.within_s - 3 <= looking.left_s(announcement) <= looking.kind.within_s + 1
    assert looking.look() == [announcement]
    looking.server.service.withdraw()
    assert looking.look() == []


@pytest.mark.parametrize("looking", sorted(KINDS.keys() - {"gcp"}), indirect=True)  # which tells no time
@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_here_changes_nothing_about_how_long_there_is(looking: Looking, ahead_s: float) -> None:
    looking.look()
    looking.give()
    looking.server.ahead_s = ahead_s
    (announcement,) = looking.look()
    # What the stand-in tells is by its own clock, which is right: this machine's is taken for the wrong one.
    assert looking.left_s(announcement) == pytest.approx(looking.kind.within_s - ahead_s, abs=3)


@pytest.mark.parametrize("status", [204, 301, 302, 400, 410, 429, 500, 503])
def test_another_status_is_no_answer_and_the_next_one_counts_again(looking: Looking, status: int) -> None:
    looking.look()
    looking.give()
    looking.server.faults.answer(status, Location=f"{looking.server.url}/elsewhere")
    with pytest.raises(NoAnswer, match=str(status)):
        looking.look()
    looking.server.faults.clear()
    assert len(looking.look()) == 1
    assert not looking.server.asked("/elsewhere")


@pytest.mark.parametrize(
    "body", ["", "<html>sign in</html>", "{", "[]", "null", "[" * 5000, '{"action": 1, "time": 2}', '{"Events": 1}']
)
def test_what_cannot_be_read_is_no_answer(looking: Looking, body: str) -> None:
    looking.look()
    looking.server.faults.answer(200, body)
    with pytest.raises(NoAnswer) as said:
        looking.look()
    assert looking.server.faults.fired
    assert len(str(said.value)) < 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nTRU",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1) + b"x" * (MAX_BODY + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70000 + b"\r\n\r\n",
        b"HTTP/1.1 twohundred OK\r\n\r\n",
    ],
)
def test_what_is_no_whole_answer_is_none(looking: Looking, data: bytes) -> None:
    looking.look()
    looking.server.faults.raw(data)
    with pytest.raises(NoAnswer):
        looking.look()
    looking.server.faults.clear()
    looking.give()
    assert len(looking.look()) == 1


def test_where_nobody_is_it_says_so_and_finds_who_comes_later(looking: Looking) -> None:
    looking.server.refuse()
    with pytest.raises(NoAnswer, match="refused"):
        looking.look()
    looking.server.listen()
    looking.give()
    assert len(looking.look()) == 1


@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith(("aws", "alibaba,"))])
def test_a_token_that_is_taken_no_more_is_replaced_at_once(kind: str) -> None:
    with MetadataServer(KINDS[kind].service()) as server:
        looking = Looking(KINDS[kind], server)
        looking.look()
        looking.give()
        server.service.tokens.expire()
        assert len(looking.look()) == 1
        assert len(server.service.tokens) == 2
        looking.look()
        assert len(server.service.tokens) == 2


def test_a_token_that_would_write_a_head_of_its_own_is_none() -> None:
    with MetadataServer(AwsService()) as server:
        server.faults.answer(200, "good\r\nX-Evil: 1", times=1)
        with pytest.raises(NoAnswer, match="no token"):
            Aws().look(HttpClient(server.url))
        assert len(server.calls) == 1
