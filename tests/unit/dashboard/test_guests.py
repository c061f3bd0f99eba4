"""Connections of the page's server: who gives way, and when time is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hvd_elastic_ext.dashboard import guests as module
from hvd_elastic_ext.dashboard.guests import Guests


class Transport:
    """What an asyncio transport tells of itself, and whether it was closed."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def abort(self) -> None:
        self.gone.set()

    def is_closing(self) -> bool:
        return self.gone.is_set()

    def get_extra_info(self, _: str) -> Any:
        return self

    def fileno(self) -> int:
        return -1 if self.gone.is_set() else 3


def come(guests: Guests, port: int, host: str = "127.0.0.1") -> Transport:
    transport = Transport()
    guests.make_room()
    guests.came(transport, (host, port))  # type: ignore[arg-type]
    return transport


async def test_one_connection_too_many_closes_the_oldest_that_has_not_shown_the_token() -> None:
    guests = Guests(most=3)
    page, *strangers = (come(guests, port) for port in (1, 2, 3))
    guests.showed_token(("127.0.0.1", 1))
    guests.asked(("127.0.0.1", 2))
    come(guests, 4)
    assert [each.is_closing() for each in (page, *strangers)] == [False, False, True]


async def test_a_crowd_from_one_address_takes_no_place_of_another() -> None:
    guests = Guests(most=3)
    other = come(guests, 1, "10.0.0.1")
    crowd = [come(guests, port, "10.0.0.2") for port in range(10)]
    assert (other.is_closing(), sum(not each.is_closing() for each in crowd)) == (False, 2)


async def test_when_all_are_the_users_own_the_oldest_goes() -> None:
    guests = Guests(most=2)
    pages = [come(guests, port) for port in (1, 2)]
    for port in (1, 2):
        guests.showed_token(("127.0.0.1", port))
    come(guests, 3)
    assert [each.is_closing() for each in pages] == [True, False]


@pytest.mark.parametrize("asks", [False, True], ids=["asks nothing", "does not read the answer"])
async def test_a_connection_ends_in_time(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 60.0 if asks else 0.01)
    monkeypatch.setattr(module, "ANSWER_S", 0.01 if asks else 60.0)
    guests = Guests()
    stranger = come(guests, 1)
    if asks:
        guests.asked(("127.0.0.1", 1))
    await asyncio.wait_for(stranger.gone.wait(), 20)


async def test_a_page_with_the_token_is_open_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    guests = Guests()
    page, later = come(guests, 1), come(guests, 2)
    guests.asked(("127.0.0.1", 1))
    guests.showed_token(("127.0.0.1", 1))
    guests.asked(("127.0.0.1", 2))
    await asyncio.wait_for(later.gone.wait(), 20)
    assert not page.is_closing()
