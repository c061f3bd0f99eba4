"""What all of it is for: whoever lists, and then watches, knows what there is."""

from __future__ import annotations

import random
import threading

import pytest

from tests.contract.kube.client import MERGE
from tests.contract.kube.conftest import Space, gated, pod


class Picture:
    """Objects by name, as a client that trusts the server builds them: the version and labels of each."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str, dict[str, str]]] = {}
        self.version = ""

    def take(self, body: dict[str, object]) -> None:
        metadata = body["metadata"]
        assert isinstance(metadata, dict)
        self.known[metadata["name"]] = (metadata["uid"], metadata["resourceVersion"], metadata.get("labels") or {})

    def apply(self, kind: str, body: dict[str, object]) -> None:
        metadata = body["metadata"]
        assert isinstance(metadata, dict)
        name, known = metadata["name"], self.known.get(metadata["name"])
        if kind == "DELETED":
            assert known is not None, f"{name} ends before it began"
            assert known[0] == metadata["uid"]
            del self.known[name]
        else:
            assert (kind == "ADDED") == (known is None), f"{kind} {name}, known: {known}"
            self.take(body)
        assert int(metadata["resourceVersion"]) > int(self.version or 0)
        self.version = metadata["resourceVersion"]


def _writer(space: Space, names: list[str], *, turns: int, seed: int) -> None:
    """Create, relabel and delete at random; nobody else touches these names."""
    chance = random.Random(seed)
    there: set[str] = set()
    for turn in range(turns):
        name = chance.choice(names)
        if name not in there:
            role = chance.choice(["worker", "idle"])
            space.api.done("POST", space.pods, gated(pod(name, role=role)))
            there.add(name)
        elif chance.random() < 0.3:
            space.delete(name, grace=0)
            there.discard(name)
        else:
            labels = {"role": chance.choice(["worker", "idle"]), "turn": str(turn)}
            space.api.done("PATCH", space.path("pods", name), {"metadata": {"labels": labels}}, media=MERGE)


@pytest.mark.parametrize("selector", ["role=worker"])
def test_who_lists_and_then_watches_knows_what_there_is(space: Space, selector: str) -> None:
    query = {"labelSelector": selector} if selector else {}
    writers = [
        threading.Thread(target=_writer, args=(space, [f"p{number}-{each}" for each in range(4)]), kwargs=kwargs)
        for number, kwargs in enumerate({"turns": 40, "seed": seed} for seed in range(3))
    ]
    for each in writers:
        each.start()
    picture = Picture()
    for page in space.api.pages(space.pods, limit=3, **query):
        picture.version = page.version
        for item in page.body["items"]:
            picture.take(item)
    watch = space.watch(resourceVersion=picture.version, **query)
    for each in writers:
        each.join(60)
    end = space.api.done("POST", space.pods, gated(pod("zz-end", role="worker"))).body["metadata"]["name"]
    while end not in picture.known:
        picture.apply(*watch.next())

    final = Picture()
    for item in space.api.done("GET", space.pods, **query).body["items"]:
        final.take(item)
    assert picture.known == final.known


def test_a_watch_that_is_opened_again_where_it_ended_loses_and_repeats_nothing(space: Space) -> None:
    picture = Picture()
    picture.version = space.version()
    writer = threading.Thread(target=_writer, args=(space, ["a", "b", "c"]), kwargs={"turns": 60, "seed": 7})
    writer.start()
    opened = 0
    while writer.is_alive() or opened < 3:
        watch = space.watch(resourceVersion=picture.version)
        opened += 1
        watch.patience(0.3)
        try:
            for _ in range(5):
                picture.apply(*watch.next())
        except TimeoutError:
            pass  # nothing happens any more, or not now
        finally:
            watch.close()
    writer.join()
    end = space.api.done("POST", space.pods, gated(pod("zz-end"))).body["metadata"]["name"]
    watch = space.watch(resourceVersion=picture.version)
    while end not in picture.known:
        picture.apply(*watch.next())

    final = Picture()
    for item in space.api.done("GET", space.pods).body["items"]:
        final.take(item)
    assert picture.known == final.known
