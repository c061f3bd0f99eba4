"""The keys of a world, for all processes of a host."""

from __future__ import annotations

from hvd_elastic_ext.agent.slots.rendezvous import Asker, Key, WorldKeys


class Slot:
    """The connection of a slot: what it asks the launcher, and what its process is answered."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: list[tuple[int, int, bytes]] = []

    def pass_on(self, number: int) -> None:
        self.asked.append(number)

    def pass_answer(self, number: int, status: int, body: bytes) -> None:
        self.answers.append((number, status, body))


KEY = Key(3, "/global/1")


def test_all_who_wait_get_the_one_answer() -> None:
    keys, a, b = WorldKeys(), Slot(), Slot()
    keys.ask(KEY, Asker(a, 7))
    keys.ask(KEY, Asker(b, 9))
    assert (a.asked, b.asked) == ([7], [])
    keys.answered(KEY, 200, b"here")
    assert (a.answers, b.answers) == ([(7, 200, b"here")], [(9, 200, b"here")])
    keys.ask(KEY, Asker(b, 10))
    assert (b.asked, b.answers[-1]) == ([], (10, 200, b"here"))


def test_only_a_value_is_kept() -> None:
    keys, a = WorldKeys(), Slot()
    for number, status in enumerate((404, 500)):
        keys.ask(KEY, Asker(a, number))
        keys.answered(KEY, status, b"")
    assert a.asked == [0, 1]


def test_a_key_of_another_world_is_another_key() -> None:
    keys, a = WorldKeys(), Slot()
    keys.store(KEY, b"here")
    keys.ask(KEY._replace(generation=4), Asker(a, 1))
    keys.store(Key(4, "/global/0"), b"new")
    keys.ask(KEY, Asker(a, 2))
    keys.store(KEY, b"late")
    keys.ask(KEY, Asker(a, 3))
    assert a.asked == [1, 2], "what is asked for is not asked for twice"
    keys.answered(KEY, 500, b"")
    assert a.answers == [(2, 500, b""), (3, 500, b"")]


def test_who_waits_is_asked_for_when_the_first_gives_up() -> None:
    keys, a, b, c = WorldKeys(), Slot(), Slot(), Slot()
    for number, slot in enumerate((a, b, c)):
        keys.ask(KEY, Asker(slot, number))
    assert not keys.withdraw(KEY, Asker(b, 1)), "the launcher does not know of it"
    assert keys.withdraw(KEY, Asker(a, 0))
    assert (c.asked, keys.is_passed_on(KEY, Asker(c, 2))) == ([2], True)
    assert keys.withdraw(KEY, Asker(c, 2))
    keys.ask(KEY, Asker(b, 3))
    assert b.asked == [3]


def test_keys_of_a_lost_world_are_asked_for_again() -> None:
    keys, a = WorldKeys(), Slot()
    keys.store(KEY, b"here")
    keys.lose(2)
    keys.lose(None)
    keys.ask(KEY, Asker(a, 1))
    keys.lose(3)
    keys.ask(KEY, Asker(a, 2))
    assert (a.answers, a.asked) == ([(1, 200, b"here")], [2])


def test_an_answer_that_was_on_its_way_when_the_world_was_lost_is_not_kept() -> None:
    keys, a = WorldKeys(), Slot()
    keys.ask(KEY, Asker(a, 1))
    keys.lose(3)
    keys.answered(KEY, 200, b"late")
    keys.ask(KEY, Asker(a, 2))
    assert (a.answers, a.asked) == ([(1, 200, b"late")], [1, 2])
    keys.store(Key(4, "/global/1"), b"next")
    keys.ask(Key(4, "/global/1"), Asker(a, 3))
    assert a.answers[-1] == (3, 200, b"next")


def test_no_key_of_a_world_is_known_once_the_launcher_refuses_one() -> None:
    keys, a = WorldKeys(), Slot()
    keys.store(KEY, b"here")
    keys.ask(Key(3, "/local/1"), Asker(a, 1))
    keys.answered(Key(3, "/local/1"), 500, b"")
    keys.ask(KEY, Asker(a, 2))
    assert (a.answers, a.asked) == ([(1, 500, b"")], [1, 2])
