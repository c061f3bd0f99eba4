"""Lists: pages, versions, selectors."""

from __future__ import annotations

import pytest

from tests.contract.kube.conftest import Space


def test_a_list_says_its_kind_and_version_and_its_items_say_no_kind(space: Space) -> None:
    space.pod("a")
    body = space.api.done("GET", space.pods).body

    assert (body["kind"], body["apiVersion"]) == ("PodList", "v1")
    assert int(body["metadata"]["resourceVersion"]) >= int(body["items"][0]["metadata"]["resourceVersion"])
    assert not {"kind", "apiVersion"} & set(body["items"][0])


def test_pages_hold_everything_once_in_the_order_of_names(space: Space) -> None:
    for name in ("c", "a", "e", "b", "d"):
        space.pod(name)
    pages = list(space.api.pages(space.pods, limit=2))

    assert [page.names for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert pages[0].body["metadata"]["continue"]
    assert not pages[-1].body["metadata"].get("continue")


def test_all_pages_are_of_the_version_of_the_first(space: Space) -> None:
    for name in ("a", "b", "d"):
        space.pod(name)
    first = space.api.done("GET", space.pods, limit=1)
    space.pod("c")
    space.delete("d", grace=0)
    space.label("b", late="yes")
    again = {"continue": first.body["metadata"]["continue"]}
    rest = space.api.done("GET", space.pods, limit=10, **again)

    assert rest.names == ["b", "d"]
    assert "late" not in rest.body["items"][0]["metadata"].get("labels", {})
    assert rest.version == first.version
    assert space.api.done("GET", space.pods).names == ["a", "b", "c"]


def test_a_list_that_is_not_older_than_a_version_is_the_latest(space: Space) -> None:
    old = space.pod("a").version
    space.pod("b")
    reply = space.api.done("GET", space.pods, resourceVersion=old, resourceVersionMatch="NotOlderThan")

    assert "a" in reply.names
    assert int(reply.version) >= int(old)


def test_a_version_that_is_not_there_yet_is_a_timeout_with_its_cause(space: Space) -> None:
    ahead = int(space.version()) + 1_000_000
    reply = space.api.ask("GET", space.pods, resourceVersion=ahead, resourceVersionMatch="NotOlderThan")

    assert (reply.code, reply.body["reason"]) == (504, "Timeout")
    assert reply.body["message"].startswith(f"Timeout: Too large resource version: {ahead}, current: ")
    assert reply.body["details"]["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]
    assert int(reply.headers["retry-after"]) == reply.body["details"]["retryAfterSeconds"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", ["a", "b", "c", "d"]),
        ("role=worker", ["a", "b"]),
        ("role==worker", ["a", "b"]),
        ("role!=worker", ["c", "d"]),
        ("role in (worker, launcher)", ["a", "b", "c"]),
        ("role notin (worker)", ["c", "d"]),
        ("role", ["a", "b", "c"]),
        ("!role", ["d"]),
        ("role=worker,zone!=z2", ["a"]),
        ("role in (worker),zone in (z1,z2)", ["a", "b"]),
        ("example.org/role=worker", []),
        ("zone=", []),
    ],
)
def test_a_list_by_labels_has_the_objects_that_match_and_no_other(
    space: Space, selector: str, names: list[str]
) -> None:
    space.pod("a", role="worker", zone="z1")
    space.pod("b", role="worker", zone="z2")
    space.pod("c", role="launcher")
    space.pod("d")

    assert space.api.done("GET", space.pods, labelSelector=selector).names == names


@pytest.mark.parametrize("selector", ["a in", "=", "a b", "a in (b", "a=b c"])
def test_a_selector_that_is_none_is_refused(space: Space, selector: str) -> None:
    assert space.api.ask("GET", space.pods, labelSelector=selector).code == 400


def test_a_list_of_pods_by_fields_has_those_that_match_and_no_other(space: Space) -> None:
    space.pod("a")
    space.pod("b")
    space.status("b", phase="Running")

    def names(selector: str) -> list[str]:
        return space.api.done("GET", space.pods, fieldSelector=selector).names

    assert names("metadata.name=a") == ["a"]
    assert names("metadata.name!=a") == ["b"]
    assert names(f"spec.nodeName={space.node()}") == ["a", "b"]
    assert names("spec.nodeName=other") == []
    assert names(f"spec.nodeName={space.node()},status.phase=Running") == ["b"]


def test_nodes_are_listed_without_a_namespace(space: Space) -> None:
    node = space.node()
    reply = space.api.done("GET", "/api/v1/nodes", labelSelector=f"hvdt={space.name}")

    assert reply.names == [node]
    assert "namespace" not in reply.body["items"][0]["metadata"]
