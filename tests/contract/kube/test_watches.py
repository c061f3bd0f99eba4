"""Watches: what comes, in which order, and how they end."""

from __future__ import annotations

import pytest

from tests.contract.kube.conftest import Space


def test_a_watch_goes_on_where_the_list_ended(space: Space) -> None:
    space.pod("a")
    watch = space.watch(resourceVersion=space.version())
    space.pod("b")
    space.label("a", x="1")
    space.delete("b", grace=0)
    seen = [watch.next() for _ in range(4)]

    assert [(kind, body["metadata"]["name"]) for kind, body in seen] == [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("MODIFIED", "b"),  # a pod's deletion leaves a trace, even when it is the end
        ("DELETED", "b"),
    ]
    assert seen[2][1]["metadata"]["deletionGracePeriodSeconds"] == 0
    versions = [int(body["metadata"]["resourceVersion"]) for _, body in seen]
    assert versions == sorted(set(versions))
    assert all((body["kind"], body["apiVersion"]) == ("Pod", "v1") for _, body in seen)


@pytest.mark.parametrize("version", ["", "0"])
def test_a_watch_of_no_version_begins_with_what_there_is(space: Space, version: str) -> None:
    for name in ("b", "a"):
        space.pod(name)
    space.version()  # which also lets a cache catch up
    watch = space.watch(**({"resourceVersion": version} if version else {}))
    seen = [watch.next() for _ in range(2)]

    assert {kind for kind, _ in seen} == {"ADDED"}
    assert {body["metadata"]["name"] for _, body in seen} == {"a", "b"}


def test_a_watch_ends_after_its_timeout_without_an_error(space: Space) -> None:
    watch = space.watch(resourceVersion=space.version(), timeoutSeconds=1)

    assert watch.until_end() == []


def test_objects_that_leave_the_selector_are_deleted_with_their_last_state_in_it(space: Space) -> None:
    space.pod("a", role="worker")
    watch = space.watch(resourceVersion=space.version(), labelSelector="role=worker")
    left = space.label("a", role="idle")
    back = space.label("a", role="worker")
    seen = [watch.next() for _ in range(2)]

    assert [kind for kind, _ in seen] == ["DELETED", "ADDED"]
    assert seen[0][1]["metadata"]["labels"] == {"role": "worker"}
    assert seen[0][1]["metadata"]["resourceVersion"] == left.version
    assert seen[1][1]["metadata"]["resourceVersion"] == back.version


def test_objects_outside_the_selector_are_never_seen(space: Space) -> None:
    watch = space.watch(resourceVersion=space.version(), labelSelector="role in (worker)", timeoutSeconds=2)
    space.pod("a", role="launcher")
    space.label("a", x="1")
    space.delete("a", grace=0)
    space.pod("b", role="worker")

    assert [(kind, body["metadata"]["name"]) for kind, body in watch.until_end()] == [("ADDED", "b")]


def test_a_field_selector_watches_one_name(space: Space) -> None:
    watch = space.watch(resourceVersion=space.version(), fieldSelector="metadata.name=b")
    space.pod("a")
    space.pod("b")

    assert watch.next()[1]["metadata"]["name"] == "b"


def test_a_deletion_with_grace_is_first_a_change_and_then_the_end(space: Space) -> None:
    space.pod("a")
    watch = space.watch(resourceVersion=space.version())
    space.delete("a", grace=20)
    kind, body = watch.next()
    assert (kind, body["metadata"]["deletionGracePeriodSeconds"]) == ("MODIFIED", 20)

    space.delete("a", grace=0)
    assert watch.next()[1]["metadata"]["deletionGracePeriodSeconds"] == 0
    kind, last = watch.next()
    assert (kind, last["metadata"]["uid"]) == ("DELETED", body["metadata"]["uid"])
    assert int(last["metadata"]["resourceVersion"]) > int(body["metadata"]["resourceVersion"])


def test_a_recreated_pod_has_another_uid(space: Space) -> None:
    first = space.pod("a").body["metadata"]["uid"]
    watch = space.watch(resourceVersion=space.version())
    space.delete("a", grace=0)
    second = space.pod("a").body["metadata"]["uid"]
    seen = [watch.next() for _ in range(3)]

    assert [(kind, body["metadata"]["uid"]) for kind, body in seen] == [
        ("MODIFIED", first),
        ("DELETED", first),
        ("ADDED", second),
    ]


def test_a_watch_from_a_forgotten_version_is_expired_inside_http_200(space: Space) -> None:
    watch = space.watch(resourceVersion="1")
    kind, body = watch.next()

    assert watch.code == 200
    assert (kind, body["kind"], body["status"]) == ("ERROR", "Status", "Failure")
    assert (body["code"], body["reason"]) == (410, "Expired")
    assert body["message"].startswith("too old resource version: 1 (")
    assert watch.until_end() == []


def test_bookmarks_come_to_those_who_want_them_before_the_end(space: Space) -> None:
    version = space.version()
    with_bookmarks = space.watch(resourceVersion=version, timeoutSeconds=4, allowWatchBookmarks="true")
    without = space.watch(resourceVersion=version, timeoutSeconds=4)
    space.pod("a")
    written = with_bookmarks.next()[1]["metadata"]["resourceVersion"]
    rest = with_bookmarks.until_end()

    assert rest, "no bookmark came"
    assert {kind for kind, _ in rest} == {"BOOKMARK"}
    for _, body in rest:
        assert body["kind"] == "Pod"
        assert int(body["metadata"]["resourceVersion"]) >= int(written)
        assert not body["metadata"].get("name")
    assert [kind for kind, _ in without.until_end()] == ["ADDED"]
