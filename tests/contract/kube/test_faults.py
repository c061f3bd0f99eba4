"""What our server does on demand, and a real one cannot be made to do. Each fault is seen from the client's side."""

from __future__ import annotations

import http.client

import pytest

from tests.contract.kube.conftest import Space, pod
from tests.support.kube import bodies
from tests.support.kube.server import KubeServer


def test_a_watch_can_be_silent_from_the_start(fake: KubeServer, inside: Space) -> None:
    fake.faults.on("watch", "pods").hang(headers=True)
    watch = inside.watch(resourceVersion=inside.version(), timeoutSeconds=1)
    inside.pod("a")
    watch.patience(1.3)

    assert watch.code == 200
    with pytest.raises(TimeoutError):
        watch.raw()


def test_an_open_watch_can_fall_silent(fake: KubeServer, inside: Space) -> None:
    watch = inside.watch(resourceVersion=inside.version())
    inside.pod("a")
    assert watch.next()[0] == "ADDED"
    for each in fake.watches("pods"):
        each.silence()
    inside.pod("b")
    watch.patience(0.5)

    with pytest.raises(TimeoutError):
        watch.raw()


def test_a_watch_from_before_the_compaction_is_expired(fake: KubeServer, inside: Space) -> None:
    old = inside.version()
    inside.pod("a")
    fake.store.compact()
    assert inside.watch(resourceVersion=old).next()[1]["code"] == 410

    watch = inside.watch(resourceVersion=inside.version())
    inside.pod("b")
    assert watch.next()[1]["metadata"]["name"] == "b"


def test_connections_can_be_reset_and_counted(fake: KubeServer, inside: Space) -> None:
    before = fake.counts.connections
    with fake.resets():
        for _ in range(3):
            with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
                inside.api.ask("GET", inside.pods)

    assert fake.counts.connections == before + 3
    assert inside.api.ask("GET", inside.pods).code == 200


def test_a_restart_loses_the_history_and_keeps_the_objects(fake: KubeServer, inside: Space) -> None:
    old = inside.version()
    inside.pod("a")
    fake.restart()

    assert inside.watch(resourceVersion=old).next()[1]["code"] == 410
    assert inside.api.done("GET", inside.pods).names == ["a"]


def test_a_restored_server_has_lower_versions(fake: KubeServer, inside: Space) -> None:
    inside.pod("a")
    backup = fake.store.backup()
    inside.pod("b")
    seen = inside.version()
    fake.restore(backup)
    reply = inside.api.done("GET", inside.pods)
    ahead = inside.api.ask("GET", inside.pods, resourceVersion=seen, resourceVersionMatch="NotOlderThan")

    assert reply.names == ["a"]
    assert int(reply.version) < int(seen)
    assert ahead.code == 504


def test_a_pod_is_gone_when_its_grace_is_over(fake: KubeServer, inside: Space) -> None:
    fake.clock.stop()
    inside.pod("a")
    watch = inside.watch(resourceVersion=inside.version())
    inside.delete("a", grace=30)
    assert watch.next()[0] == "MODIFIED"
    fake.clock.advance(29)
    inside.pod("b")
    assert watch.next()[0] == "ADDED"
    fake.clock.advance(2)

    assert [(kind, body["metadata"]["name"]) for kind, body in (watch.next(), watch.next())] == [
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]


def test_a_watch_of_what_does_not_change_hears_nothing_and_ends_in_its_time(fake: KubeServer, inside: Space) -> None:
    """As where etcd does not tell the server how far it is: there is no bookmark that would be news."""
    watch = inside.watch(resourceVersion=inside.version(), allowWatchBookmarks="true", timeoutSeconds=60)
    fake.put("nodes", bodies.node("another-kind"))
    fake.watches("pods")[0].bookmark()
    watch.patience(0.3)
    with pytest.raises(TimeoutError):
        watch.raw()
    watch = inside.watch(resourceVersion=inside.version(), allowWatchBookmarks="true", timeoutSeconds=60)
    fake.clock.advance(59)  # a bookmark would be due a little before the end
    fake.clock.advance(2)
    assert watch.until_end() == []


def test_a_version_that_only_another_kind_has_reached_is_too_late_for_a_list_from_memory(
    fake: KubeServer, inside: Space
) -> None:
    inside.pod("a")
    seen = inside.version()
    fake.put("nodes", bodies.node("another-kind"))
    since = {"resourceVersion": inside.version(), "resourceVersionMatch": "NotOlderThan"}

    assert inside.api.ask("GET", inside.pods, **since).code == 504
    assert inside.api.done("GET", inside.pods, **{**since, "resourceVersion": seen}).names == ["a"]
    inside.label("a", x="1")
    assert inside.api.done("GET", inside.pods, **since).names == ["a"]


def test_a_server_that_has_just_started_knows_its_administrators_and_no_roles(fake: KubeServer, inside: Space) -> None:
    role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
    subjects = [{"kind": "ServiceAccount", "name": "a", "namespace": "default"}]
    fake.put("roles", role)
    fake.put("rolebindings", {**role, "subjects": subjects, "roleRef": {"kind": "Role", "name": "r"}})
    reader = inside.api.as_user(fake.access.issue_for("default", "a"))
    assert reader.ask("GET", inside.pods).code == 200
    fake.clock.stop()
    fake.restart()

    refused = reader.ask("GET", inside.pods)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert inside.api.ask("GET", inside.pods).code == 200
    fake.clock.advance(1.0)
    assert reader.ask("GET", inside.pods).code == 200


def test_requests_are_counted_by_verb_and_resource(fake: KubeServer, inside: Space) -> None:
    fake.counts.reset()
    inside.api.ask("GET", inside.pods)
    inside.api.ask("GET", "/api/v1/nodes", limit=1)
    inside.watch(resourceVersion="1").until_end()
    inside.api.ask("POST", inside.pods, pod("a"))
    inside.api.as_user("wrong").ask("GET", inside.pods)

    assert fake.counts.of("list", "pods") == 1
    assert fake.counts.of("list") == 2
    assert fake.counts.of("watch", "pods") == 1
    assert fake.counts.of("create", "pods") == 1
    assert fake.counts.answers(401) == 1
    assert fake.counts.connections == 5
    assert fake.counts.last("watch", "pods").query["resourceVersion"] == "1"


def test_a_revoked_token_is_unauthorized_and_its_successor_is_not(fake: KubeServer, inside: Space) -> None:
    old = fake.access.issue("someone", "system:masters")
    new = fake.access.issue("someone", "system:masters")
    fake.access.revoke(old)

    assert inside.api.as_user(old).ask("GET", inside.pods).code == 401
    assert inside.api.as_user(new).ask("GET", inside.pods).code == 200


def test_lists_from_a_watch_cache_that_stands_still_are_old_and_those_of_no_version_are_not(
    fake: KubeServer, inside: Space
) -> None:
    inside.pod("a")
    old = inside.version()
    with fake.stalls("pods"):
        inside.pod("b")
        inside.delete("a", grace=0)
        for query in ({"resourceVersion": "0"}, {"resourceVersion": old, "resourceVersionMatch": "NotOlderThan"}):
            reply = inside.api.done("GET", inside.pods, **query)
            assert (reply.names, reply.version) == (["a"], old)
        fresh = inside.api.done("GET", inside.pods, limit=1)

        assert fresh.names == ["b"]
        assert int(fresh.version) > int(old)
        assert inside.api.ask("GET", inside.path("pods", "b"), resourceVersion="0").code == 404
        assert inside.api.ask("GET", inside.path("pods", "b")).code == 200

    assert inside.api.done("GET", inside.pods, resourceVersion="0").names == ["b"]


def test_a_watch_cache_that_stands_still_refuses_what_is_later_and_says_where_it_stands(
    fake: KubeServer, inside: Space
) -> None:
    old = inside.version()
    with fake.stalls("pods"):
        inside.pod("a")
        later = inside.version()
        since = {"resourceVersion": later, "resourceVersionMatch": "NotOlderThan"}
        replies = [
            inside.api.ask("GET", inside.pods, **since),
            inside.api.ask("GET", inside.path("pods", "a"), **since),
        ]

    for reply in replies:
        assert reply.code == 504
        assert reply.body["message"] == f"Timeout: Too large resource version: {later}, current: {old}"
        assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert inside.api.done("GET", inside.pods, **since).names == ["a"]


def test_watches_of_a_cache_that_stands_still_stay_open_and_are_told_all_of_it_afterwards(
    fake: KubeServer, inside: Space
) -> None:
    first, deaf = (inside.watch(resourceVersion=inside.version()) for _ in range(2))
    with fake.stalls("pods"):
        inside.pod("a")
        later = inside.watch(resourceVersion=inside.version())
        inside.pod("b")
        assert inside.watch(resourceVersion="0", timeoutSeconds=1).until_end() == []
        deaf.patience(0.3)
        with pytest.raises(TimeoutError):
            deaf.raw()
        nodes = inside.watch("/api/v1/nodes", resourceVersion=inside.version())
        fake.put("nodes", bodies.node("another-kind"))
        assert nodes.next()[1]["metadata"]["name"] == "another-kind"

    assert later.code == 200
    assert [first.next()[1]["metadata"]["name"] for _ in range(2)] == ["a", "b"]
    assert later.next()[1]["metadata"]["name"] == "b"


def test_bookmarks_of_a_cache_that_stands_still_stand_still_too(fake: KubeServer, inside: Space) -> None:
    before = inside.version()
    inside.pod("a")
    stands = inside.version()
    with fake.stalls("pods"):
        inside.pod("b")
        behind = inside.watch(resourceVersion=before, allowWatchBookmarks="true")
        assert behind.next()[1]["metadata"]["name"] == "a"
        ahead = inside.watch(resourceVersion=inside.version(), allowWatchBookmarks="true")
        for _ in range(2):
            for each in fake.watches("pods"):
                each.bookmark()
            kind, body = behind.next()
            assert (kind, body["metadata"]["resourceVersion"]) == ("BOOKMARK", stands)
        ahead.patience(0.3)
        with pytest.raises(TimeoutError):
            ahead.raw()

    assert behind.next()[1]["metadata"]["name"] == "b"
