"""Which cloud is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.agent.notices import poller
from hvd_elastic_ext.agent.notices.metadata import NoResponse, Request, Response
from hvd_elastic_ext.agent.notices.poller import DetectedCloud, choose, cloud_of_firmware
from hvd_elastic_ext.core.clouds import AUTO, CLOUDS
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
