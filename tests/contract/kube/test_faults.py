"""What our server does on demand, and a real one cannot be made to do. Each fault is seen from the client's side."""

from __future__ import annotations

import http.client
import json
import socket
import time

import pytest

from tests.contract.kube.client import Api
from tests.contract.kube.conftest import Space, pod
from tests.support.kube import bodies, statuses
from tests.support.kube.clock import unix
from tests.support.kube.faults import TORN_UTF8, UNREADABLE
from tests.support.kube.server import KubeServer


def test_an_answer_can_be_any_refusal_and_comes_as_often_as_planned(fake: KubeServer, inside: Space) -> None:
    plan = fake.faults.on("list", "pods", times=2).answer(statuses.internal("etcdserver: leader changed"))
    replies = [inside.api.ask("GET", inside.pods) for _ in range(3)]

    assert [each.code for each in replies] == [500, 500, 200]
    assert replies[0].body["message"] == "Internal error occurred: etcdserver: leader changed"
    assert plan.fired == 2
    assert inside.api.ask("GET", "/api/v1/nodes").code == 200


def test_429_says_when_to_come_again(fake: KubeServer, inside: Space) -> None:
    fake.faults.on("list", times=1).busy(retry_after=7)
    busy = inside.api.ask("GET", inside.pods)
    fake.faults.on("watch", times=1).answer(statuses.too_many_requests("slow down", retry_after=3))
    watch = inside.watch()

    assert (busy.code, busy.headers["retry-after"], busy.raw[:17]) == (429, "7", b"Too many requests")
    assert (watch.code, watch.headers["retry-after"]) == (429, "3")


def test_an_answer_can_be_no_status_at_all(fake: KubeServer, inside: Space) -> None:
    fake.faults.on(times=1).answer_raw(502, b"<html>bad gateway</html>", "text/html")
    reply = inside.api.ask("GET", inside.pods)

    assert (reply.code, reply.headers["content-type"], reply.raw) == (502, "text/html", b"<html>bad gateway</html>")


def test_a_hanging_request_gets_nothing(fake: KubeServer, inside: Space) -> None:
    plan = fake.faults.on("list", "pods").hang()
    connection = inside.api.connect(timeout=0.3)
    connection.request("GET", inside.pods, headers={"Authorization": f"Bearer {fake.token}"})

    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert plan.fired == 1


def test_connections_can_be_accepted_and_left_unanswered(fake: KubeServer, inside: Space) -> None:
    before = fake.counts.of()
    with fake.hangs():
        connection = inside.api.connect(timeout=0.3)
        connection.request("GET", inside.pods)
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()

    assert fake.counts.of() == before
    assert inside.api.ask("GET", inside.pods).code == 200


def test_a_list_can_hang_after_its_headers(fake: KubeServer, inside: Space) -> None:
    fake.faults.on("list", "pods").hang(headers=True)
    connection = inside.api.connect(timeout=10)
    connection.request("GET", inside.pods, headers={"Authorization": f"Bearer {fake.token}"})
    response = connection.getresponse()
    connection.sock.settimeout(0.3)

    assert response.status == 200
    with pytest.raises(TimeoutError):
        response.read()
    connection.close()


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


def test_a_list_can_be_cut_in_the_middle(fake: KubeServer, inside: Space) -> None:
    inside.pod("a")
    fake.faults.on("list", "pods", times=1).cut()

    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        inside.api.ask("GET", inside.pods)
    assert inside.api.done("GET", inside.pods).names == ["a"]


def test_a_watch_can_be_cut_in_the_middle_of_a_line(fake: KubeServer, inside: Space) -> None:
    fake.faults.on("watch", "pods", times=1).cut()
    watch = inside.watch(resourceVersion=inside.version())
    inside.pod("a")

    with pytest.raises((http.client.HTTPException, ConnectionError, json.JSONDecodeError)):
        watch.next()


@pytest.mark.parametrize("line", [UNREADABLE, TORN_UTF8])
def test_a_watch_can_say_what_makes_no_sense_and_go_on(fake: KubeServer, inside: Space, line: bytes) -> None:
    fake.faults.on("watch", "pods", times=1).say(line)
    watch = inside.watch(resourceVersion=inside.version())
    inside.pod("a")

    assert watch.raw() == line
    assert watch.next()[0] == "ADDED"


def test_an_open_watch_can_be_made_to_say_anything(fake: KubeServer, inside: Space) -> None:
    watch = inside.watch(resourceVersion=inside.version())
    fake.watches("pods")[0].say(UNREADABLE)

    assert watch.raw() == UNREADABLE


def test_torn_utf8_is_torn() -> None:
    with pytest.raises(UnicodeDecodeError):
        TORN_UTF8.decode()


def test_a_line_can_be_of_a_mebibyte(fake: KubeServer, inside: Space) -> None:
    watch = inside.watch(resourceVersion=inside.version())
    fake.put("pods", bodies.pod("big", annotations={"pad": "x" * (1 << 20)}))
    line = watch.raw()

    assert len(line) > 1 << 20
    assert json.loads(line)["object"]["metadata"]["name"] == "big"


@pytest.mark.parametrize("code", [410, 429, 500, None])
def test_an_error_can_come_inside_http_200(fake: KubeServer, inside: Space, code: int | None) -> None:
    status = statuses.status(code or 0, "Some", "thing")
    if code is None:
        del status["code"]
    fake.faults.on("watch", times=1).error_event(status)
    watch = inside.watch(resourceVersion=inside.version())

    assert watch.code == 200
    assert [(kind, body.get("code")) for kind, body in watch.until_end()] == [("ERROR", code)]


def test_every_watch_can_end_at_once(fake: KubeServer, inside: Space) -> None:
    plan = fake.faults.on("watch").close()
    version = inside.version()

    assert [inside.watch(resourceVersion=version).until_end() for _ in range(3)] == [[], [], []]
    assert plan.fired == 3
    plan.stop()
    inside.watch(resourceVersion=version)
    assert plan.fired == 3


def test_open_watches_can_be_ended(fake: KubeServer, inside: Space) -> None:
    watches = [inside.watch(resourceVersion=inside.version()) for _ in range(3)]
    fake.close_watches("pods")

    assert [each.until_end() for each in watches] == [[], [], []]


def test_a_body_can_come_slowly(fake: KubeServer, inside: Space) -> None:
    inside.pod("a")
    fake.faults.on("list", "pods", times=1).slow(before=0.2, chunk=200, delay=0.05)
    began = time.monotonic()

    assert inside.api.done("GET", inside.pods).names == ["a"]
    assert time.monotonic() - began > 0.3


def test_a_watch_can_be_slow(fake: KubeServer, inside: Space) -> None:
    fake.faults.on("watch", "pods", times=1).slow(chunk=100, delay=0.02)
    watch = inside.watch(resourceVersion=inside.version())
    began = time.monotonic()
    inside.pod("a")

    assert watch.next()[0] == "ADDED"
    assert time.monotonic() - began > 0.1


def test_the_second_page_can_be_expired(fake: KubeServer, inside: Space) -> None:
    for name in ("a", "b", "c"):
        inside.pod(name)
    first = inside.api.done("GET", inside.pods, limit=1)
    fake.faults.on("list", "pods", times=1, paged=True).answer(statuses.continue_expired("x"))
    assert inside.api.ask("GET", inside.pods, limit=1).code == 200
    second = inside.api.ask("GET", inside.pods, limit=1, **{"continue": first.body["metadata"]["continue"]})

    assert (second.code, second.body["reason"]) == (410, "Expired")


def test_a_compacted_page_is_expired_and_offers_the_rest_without_a_promise(fake: KubeServer, inside: Space) -> None:
    for name in ("a", "b", "c"):
        inside.pod(name)
    first = inside.api.done("GET", inside.pods, limit=1)
    inside.delete("b", grace=0)
    fake.store.compact()
    second = inside.api.ask("GET", inside.pods, limit=1, **{"continue": first.body["metadata"]["continue"]})
    rest = inside.api.done("GET", inside.pods, limit=9, **{"continue": second.body["metadata"]["continue"]})

    assert (second.code, second.body["reason"]) == (410, "Expired")
    assert second.body["message"].startswith("The provided continue parameter is too old")
    assert rest.names == ["c"]


def test_a_watch_from_before_the_compaction_is_expired(fake: KubeServer, inside: Space) -> None:
    old = inside.version()
    inside.pod("a")
    fake.store.compact()
    assert inside.watch(resourceVersion=old).next()[1]["code"] == 410

    watch = inside.watch(resourceVersion=inside.version())
    inside.pod("b")
    assert watch.next()[1]["metadata"]["name"] == "b"


def test_history_is_forgotten_by_itself_when_it_is_long() -> None:
    with KubeServer(history=100) as server:
        inside = Space(Api(server.url, server.token), "default")
        old = inside.version()
        for number in range(200):
            server.put("pods", bodies.pod("a", annotations={"turn": str(number)}))
        watch = inside.watch(resourceVersion=old)

        assert watch.next()[1]["code"] == 410
        watch.close()


def test_connections_can_be_refused_and_accepted_again_on_the_same_port(fake: KubeServer, inside: Space) -> None:
    watch = inside.watch(resourceVersion=inside.version())
    with fake.down():
        with pytest.raises(ConnectionRefusedError):
            inside.api.ask("GET", inside.pods)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            watch.raw()

    assert inside.api.ask("GET", inside.pods).code == 200


def test_connections_can_be_reset_and_counted(fake: KubeServer, inside: Space) -> None:
    before = fake.counts.connections
    with fake.resets():
        for _ in range(3):
            with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
                inside.api.ask("GET", inside.pods)

    assert fake.counts.connections == before + 3
    assert inside.api.ask("GET", inside.pods).code == 200


def test_idle_connections_can_be_dropped(fake: KubeServer) -> None:
    with socket.create_connection(("127.0.0.1", fake.port)) as idle:
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        fake.drop()
        idle.settimeout(60)
        with pytest.raises(ConnectionResetError):
            assert idle.recv(1) != b""


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


def test_the_servers_clock_is_its_own(fake: KubeServer, inside: Space) -> None:
    fake.clock.stop()
    fake.clock.advance(3600)
    inside.pod("a")
    at = unix(inside.delete("a", grace=30).body["metadata"]["deletionTimestamp"])

    assert at == int(fake.clock.now()) + 30
    assert at > time.time() + 3000


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


def test_bookmarks_can_be_sent_at_will() -> None:
    with KubeServer(notices=True) as server:
        inside = Space(Api(server.url, server.token), "default")
        watch = inside.watch(resourceVersion=inside.version(), allowWatchBookmarks="true")
        server.store.skip(500)
        server.watches("pods")[0].bookmark()
        kind, body = watch.next()
        watch.close()

        assert kind == "BOOKMARK"
        assert int(body["metadata"]["resourceVersion"]) == server.store.revision


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


def test_a_token_lasts_as_long_as_it_was_issued_for(fake: KubeServer, inside: Space) -> None:
    token = fake.access.issue("someone", "system:masters", lasts=600)
    assert inside.api.as_user(token).ask("GET", inside.pods).code == 200
    fake.clock.advance(601)

    assert inside.api.as_user(token).ask("GET", inside.pods).code == 401


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
        assert inside.api.done("GET", inside.pods, resourceVersion=old, resourceVersionMatch="Exact").names == ["a"]

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
