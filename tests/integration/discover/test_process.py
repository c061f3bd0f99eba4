"""The real command: what it does when things change, break and end."""

import json
import re
import signal
import socket
import sys
import threading
import urllib.request

from tests.integration.discover.test_leaving import at_its_best, ends_in
from tests.support.processes import run_process
from tests.support.waiting import wait_until


def wait_published(place, text: str) -> None:
    wait_until(lambda: place.published() == text, what=repr(text), show=place.published)


def test_a_signal_ends_it_in_under_two_seconds_even_with_clients_waiting(place):
    place.watched.write_text("a:1\n")

    def took() -> float:
        with place.serve() as daemon:
            daemon.wait_for("listening")
            wait_until(lambda: place.get("/readyz")[0] == 200, what="the first publication")
            waiting = threading.Thread(target=_wait_for_news, args=(place,))
            waiting.start()
            try:
                return ends_in(daemon)
            finally:
                waiting.join()

    at_its_best(took)
    assert place.published() == "a:1\n"
    assert not place.socket.exists()
    assert place.litter() == set()


def _wait_for_news(place) -> None:
    try:
        place.get("/hosts?after=1")
    except ConnectionError:
        """The server went away without an answer, as it should."""


NONSENSE = [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"POST /hosts HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 70_000, b""]
"""What clients send."""


def test_changes_are_published_and_pushed_over_socket_and_port_whatever_others_do(place):
    place.watched.write_text("a:1\n")
    with place.serve("--listen", ":0") as daemon:
        url = daemon.wait_for(r"listening: (http://\S+)").group(1)
        assert url.startswith("http://127.0.0.1:"), "loopback, unless it is told otherwise"
        wait_published(place, "a:1\n")
        for nonsense in NONSENSE:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(place.socket))
                client.sendall(nonsense)
        bodies: list[str] = []
        clients = [threading.Thread(target=lambda: bodies.append(place.get("/hosts?after=1")[1])) for _ in range(50)]
        for client in clients:
            client.start()
        place.watched.write_text("b:2\na:1\n")
        for client in clients:
            client.join()
        with urllib.request.urlopen(f"{url}/hosts?after=0") as over_tcp:
            assert set(bodies) == {over_tcp.read().decode()}
        assert [host["name"] for host in json.loads(bodies[0])["hosts"]] == ["a", "b"]
        wait_published(place, "a:1\nb:2\n")
        place.hosts.unlink()
        wait_published(place, "a:1\nb:2\n")
        place.hosts.write_text("evil:1\n")
        wait_published(place, "a:1\nb:2\n")
        daemon.send_signal(signal.SIGHUP)
        place.watched.write_text("c:1\n")
        wait_published(place, "c:1\n")
        assert "Traceback" not in daemon.output


def test_a_killed_daemon_frees_its_places_and_the_next_leaves_what_is_the_same_and_lets_no_third_in(place):
    place.watched.write_text("b:1\na:1\n")
    with place.serve() as daemon:
        wait_published(place, "a:1\nb:1\n")
        wait_until(lambda: place.get("/hosts")[0] == 200, what="the hosts")
        life, inode = json.loads(place.get("/hosts")[1])["source"], place.hosts.stat().st_ino
        daemon.kill()
        daemon.wait()
    assert place.socket.exists()
    with place.serve() as second:
        second.wait_for("sequence=1")
        wait_until(lambda: place.get("/startupz")[0] == 200, what="startup")
        assert json.loads(place.get("/hosts")[1])["source"] != life
        with place.run() as third:
            assert third.wait() == 1
            assert f"{place.hosts}: another hvd-discover (process {second.pid}) already writes it" in third.stderr
            assert "Traceback" not in third.stderr
        assert second.returncode is None
    assert place.hosts.stat().st_ino == inode


BAD = ["a:0\n", "-oProxyCommand=x:1\n", "nul\0:1\n"]


def test_whatever_nonsense_the_file_holds_the_last_good_hosts_stay(place):
    place.watched.write_text("good:1\n")
    with place.serve() as daemon:
        daemon.wait_for("listening")
        wait_until(lambda: place.get("/readyz")[0] == 200, what="the first publication")
        for text in BAD:
            place.watched.write_text(text)
            wait_until(lambda: place.get("/readyz")[0] == 503, what=f"{text!r} to be refused")
            assert f"{place.watched}:" in place.get("/readyz")[1]
            assert place.published() == "good:1\n"
            place.watched.write_text("good:1\n")
            wait_until(lambda: place.get("/readyz")[0] == 200, what="to be well again")
        place.watched.write_bytes(b"\xff:1\n")
        wait_until(lambda: "not UTF-8" in place.get("/readyz")[1], what="bytes to be refused")
        place.watched.unlink()
        wait_until(lambda: "does not exist" in place.get("/readyz")[1], what="the loss to be noticed")
        assert place.published() == "good:1\n"
        assert "Traceback" not in daemon.output
        place.watched.write_text("good:1\nnew:1\n")
        wait_published(place, "good:1\nnew:1\n")
        wait_until(lambda: place.get("/readyz")[0] == 200, what="to be well again")


def test_started_on_a_bad_file_it_stays_and_leaves_what_stands_there_until_it_is_good(place):
    place.watched.write_text("a:zero\n")
    place.hosts.parent.mkdir()
    place.hosts.write_text("old:1\n")
    with place.serve() as daemon:
        daemon.wait_for(re.escape(f"{place.watched}:1: "))
        assert place.get("/startupz")[0] == 503
        assert place.get("/hosts")[0] == 503
        assert place.published() == "old:1\n"
        place.watched.write_text("new:1\nold:1\n")
        wait_published(place, "old:1\nnew:1\n")
        wait_until(lambda: place.get("/startupz")[0] == 200, what="startup")


def test_the_static_source_publishes_and_stays(place):
    static = ["--source", "static", "--hosts", "b:4,a:2"]
    argv = [sys.executable, "-m", "discover.cli", *static, "--hosts-file", str(place.hosts)]
    with run_process(argv) as daemon:
        wait_published(place, "a:2\nb:4\n")
        daemon.terminate()
        assert daemon.wait() == 0


def test_one_look_waits_for_a_writer_to_finish(place):
    with place.watched.open("w") as writer:
        writer.write("a:1\n")
        writer.flush()
        with place.run("--once") as look:
            threading.Timer(0.2, writer.close).start()
            assert look.wait() == 0, look.stderr
    assert place.published() == "a:1\n"
