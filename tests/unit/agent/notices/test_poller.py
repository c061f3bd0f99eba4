"""Which cloud is asked, how often, and what the log says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.agent.notices import poller
from hvd_elastic_ext.agent.notices.files import Notice
from hvd_elastic_ext.agent.notices.metadata import Announcement, NoResponse, Request, Response
from hvd_elastic_ext.agent.notices.poller import (
    ABSENT_S,
    LOST_S,
    REPORT_AFTER,
    VOID_S,
    DetectedCloud,
    Poller,
    choose,
    cloud_of_firmware,
    going,
)
from hvd_elastic_ext.core.notice_sources import AUTO, CLOUDS
from hvd_elastic_ext.launcher.options.settings import NO_CLOUD, NOTICES_FROM

FIRMWARE = {
    "aws": {"sys_vendor": "Amazon EC2", "product_name": "m5.large"},
    "aws, on Xen": {"sys_vendor": "Xen", "bios_version": "4.11.amazon"},
    "gcp": {"sys_vendor": "Google", "product_name": "Google Compute Engine"},
    "azure": {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
    "alibaba": {"sys_vendor": "Alibaba Cloud", "product_name": "Alibaba Cloud ECS"},
    "": {"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"},
    " ": {},
}


class Asked:
    """Answers as one cloud does, wherever it is asked, and remembers where that was."""

    ahead_s = 0.0

    def __init__(self, answers: dict[str, tuple[int, str, dict[str, str]]]) -> None:
        self.answers = answers
        self.urls: list[str] = []
        self.paths: list[str] = []

    def at(self, url: str) -> Asked:
        self.urls.append(url)
        return self

    def __call__(self, request: Request, /) -> Response:
        self.paths.append(request.path)
        found = self.answers.get(request.path.partition("?")[0])
        if found is None:
            raise NoResponse("nobody")
        return Response(*found, 1000.0)


AWS: dict[str, tuple[int, str, dict[str, str]]] = {
    "/latest/api/token": (200, "token", {}),
    "/latest/meta-data/spot/instance-action": (404, "", {}),
}


def chosen(
    source: str, asked: Asked, *, url: str | None = None, firmware: dict[str, str] | None = None
) -> DetectedCloud:
    return choose(source, url, asked.at, firmware=lambda place: (firmware or {}).get(place, ""))


@pytest.mark.parametrize("name", FIRMWARE)
def test_firmware_tells_whose_machine_this_is(name: str) -> None:
    assert cloud_of_firmware(lambda place: FIRMWARE[name].get(place, "")) == (name.partition(",")[0].strip() or None)


def test_what_is_named_is_asked_in_its_usual_place_or_where_it_is_said_to_be() -> None:
    for url, used in ((None, "http://169.254.169.254"), ("http://other:1", "http://other:1")):
        asked = Asked(AWS)
        source = chosen("aws", asked, url=url, firmware=FIRMWARE["gcp"])
        assert source.look() == []
        assert (source.name, source.every_s, asked.urls) == ("aws", 5.0, [used])


def test_by_itself_it_is_the_one_that_firmware_names() -> None:
    asked = Asked(AWS)
    assert chosen("auto", asked, firmware=FIRMWARE["alibaba"]).name == "alibaba"
    assert asked.urls == ["http://100.100.100.200"]


def test_without_a_word_of_the_firmwares_it_is_the_one_that_answers_as_it_should() -> None:
    asked = Asked({})
    source = chosen("auto", asked)
    assert source.name == "auto"
    with pytest.raises(NoResponse, match="no cloud"):
        source.look()
    asked.answers = AWS
    assert source.look() == []
    assert source.name == "aws"
    asked.paths.clear()
    source.look()
    assert all(path.startswith("/latest/") for path in asked.paths)


def test_whoever_answers_everything_with_a_page_is_no_cloud() -> None:
    page: tuple[int, str, dict[str, str]] = (200, "<html>hello</html>", {})
    everything = dict.fromkeys([path.partition("?")[0] for path in _paths()], page)
    with pytest.raises(NoResponse, match="no cloud"):
        chosen("auto", Asked(everything)).look()


def _paths() -> list[str]:
    asked = Asked({})
    source = chosen("auto", asked)
    with pytest.raises(NoResponse):
        source.look()
    return [*asked.paths, "/metadata/scheduledevents", "/latest/meta-data/spot/instance-action"]


def test_what_the_option_offers_is_what_agents_know() -> None:
    assert set(NOTICES_FROM) == {NO_CLOUD, AUTO, *CLOUDS}
    with pytest.raises(ValueError, match=", ".join(sorted(CLOUDS))):
        chosen("amazon", Asked({}))


def test_firmware_that_cannot_be_read_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    monkeypatch.setattr(poller, "_DMI", f"{tmp_path}/")
    assert poller.firmware("sys_vendor") == "Amazon EC2"
    assert poller.firmware("product_name") == ""


# --- how often the cloud is asked, and what the log says about it


NOW = 1000.0
SPOT = Announcement("taken back", at=NOW + 120)
ADVICE = Announcement("likely to be taken back", advisory=True)


class Source:
    """Says what it is told to: words, or why it cannot."""

    name = "somewhere"
    every_s = 5.0
    ahead_s = 0.0

    def __init__(self) -> None:
        self.announcements: list[Announcement] | str = []

    def look(self) -> list[Announcement]:
        if isinstance(self.announcements, str):
            raise NoResponse(self.announcements)
        return self.announcements


class Polling:
    def __init__(self) -> None:
        self.source = Source()
        self.wall = NOW
        self.said: list[dict[str, Any]] = []
        self.poller = Poller(self.source, wall=lambda: self.wall, report=lambda **said: self.said.append(said))

    def once(self, *announcements: Announcement) -> float:
        self.source.announcements = list(announcements)
        return self.poller.once()

    def fail(self, why: str = "refused") -> float:
        self.source.announcements = why
        return self.poller.once()

    @property
    def going(self) -> list[Notice | None]:
        return [each["going"] for each in self.said if "going" in each]

    @property
    def problems(self) -> list[str | None]:
        return [each["problem"] for each in self.said if "problem" in each]


@pytest.fixture
def polling() -> Polling:
    return Polling()


def test_what_is_said_is_passed_on_once_and_so_is_its_end(polling: Polling) -> None:
    for announcements in ((), (), (SPOT,), (SPOT,), (), ()):
        assert polling.once(*announcements) == 5.0
    assert polling.going == [None, Notice("taken back", NOW + 120), None]
    assert polling.problems == []


def test_a_time_is_taken_when_the_word_comes_and_not_again(polling: Polling) -> None:
    for announcement in (Announcement("preempted", within_s=30.0), SPOT):
        polling.once()
        polling.said.clear()
        polling.source.ahead_s = 7.0
        polling.once(announcement)
        first = polling.going
        polling.wall += 10.0
        polling.source.ahead_s = 9.0
        polling.once(announcement)
        assert polling.going == first


def test_a_time_goes_on_where_one_that_looked_before_has_taken_it(polling: Polling) -> None:
    preempted = Announcement("preempted", within_s=30.0)
    polling.once(preempted)
    (first,) = polling.going
    later = Polling()
    later.poller = Poller(
        later.source, wall=lambda: NOW + 9, report=lambda **said: later.said.append(said), before=first
    )
    later.once(preempted)
    later.once()
    later.once(preempted)
    assert later.going == [first, None, Notice("preempted", NOW + 39)]


def test_a_word_that_comes_again_is_another_one(polling: Polling) -> None:
    for _ in range(2):
        polling.once(Announcement("preempted", within_s=30.0))
        polling.once()
        polling.wall += 100.0
    assert polling.going == [Notice("preempted", NOW + 30), None, Notice("preempted", NOW + 130), None]


def test_the_clouds_clock_is_what_its_times_are_by() -> None:
    assert going(Announcement("w", at=NOW + 120), NOW, 90.0) == Notice("w", NOW + 30)
    assert going(Announcement("w"), NOW, 90.0) == Notice("w")
    assert going(Announcement("w", within_s=30.0), NOW, 90.0) == Notice("w", NOW + 30)


def test_of_several_words_the_soonest_counts_and_advice_does_not(polling: Polling) -> None:
    polling.once(ADVICE)
    polling.once(Announcement("some day"), SPOT, Announcement("later", at=NOW + 500), ADVICE)
    assert polling.said == [
        {"going": None, "advice": "likely to be taken back"},
        {"going": Notice("taken back", NOW + 120), "advice": "likely to be taken back"},
    ]


def test_a_word_whose_time_is_long_over_is_of_an_earlier_life_and_one_that_is_late_is_not(polling: Polling) -> None:
    polling.wall = NOW + 120 + VOID_S - 1
    polling.once(SPOT)
    polling.wall += 2
    polling.once(SPOT)
    assert polling.going == [Notice("taken back", NOW + 120), None]


def test_what_was_said_holds_while_nobody_answers(polling: Polling) -> None:
    polling.once(SPOT)
    for _ in range(20):
        polling.fail()
    polling.once(SPOT)
    assert polling.going == [Notice("taken back", NOW + 120)]


def test_a_failure_is_complained_of_when_it_lasts_once_and_so_is_its_end(polling: Polling) -> None:
    for _ in range(2):
        for _ in range(REPORT_AFTER - 1):
            polling.fail()
        assert polling.problems == []
        polling.once()
    for _ in range(20):
        polling.fail("hung up")
    assert polling.problems == ["hung up"]
    polling.once()
    polling.once()
    assert polling.problems == ["hung up", None]


def test_who_never_answered_is_asked_rarely_and_who_did_is_asked_often(polling: Polling) -> None:
    pauses = [polling.fail() for _ in range(10)]
    assert pauses[:3] == [10.0, 20.0, 40.0]
    assert pauses[-1] == ABSENT_S
    assert sum(pauses[:REPORT_AFTER]) < 120
    polling.once()
    assert max(polling.fail() for _ in range(10)) == LOST_S
    assert polling.once() == 5.0
