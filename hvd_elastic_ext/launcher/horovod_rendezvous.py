"""Horovod's rendezvous server, bound to one address, trusting nobody's pickles, and in no hurry to say no.

Workers register here, learn their rank here, and exchange Gloo's addresses
through the keys that this server keeps. Horovod's own server answers 404 for a
key that is not there *yet*, and every rank asks again every 10 ms over a new
connection; this one holds the question until the key is set.
"""

from __future__ import annotations

import base64
import binascii
import io
import ipaddress
import logging
import pickle
import threading
import time
from typing import Any, Final

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.rendezvous import PUT_WORKER_ADDRESSES, create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer

from hvd_elastic_ext.launcher.horovod_driver import PushedDriver

log = logging.getLogger(__name__)

HOLD_S: Final = 2.0
"""How long a question for a key that is not set is held before the answer is 404 (and it is asked again)."""
MAX_REGISTRATION: Final = 64 * 1024

Addresses = dict[str, list[tuple[str, int]]]


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain containers; refuses every name, and so every class and function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a registration may not name {module}.{name}")


def read_registration(value: bytes) -> tuple[Addresses, bytes]:
    """Read what a Horovod worker registers: its addresses by interface, and its key.

    Horovod sends this pickled. Only plain containers are admitted, so reading
    one runs no code. Raises ``ValueError`` for anything else.
    """
    if len(value) > MAX_REGISTRATION:
        raise ValueError(f"it has more than {MAX_REGISTRATION} bytes")
    try:
        entry = _PlainUnpickler(io.BytesIO(base64.b64decode(value, validate=True))).load()
    except (pickle.UnpicklingError, binascii.Error, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a registration: {error}") from None
    if not (
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], dict) and isinstance(entry[1], bytes)
    ):
        raise ValueError("not a registration: addresses and a key were expected")
    addresses, key = entry
    for interface, places in addresses.items():
        if not isinstance(interface, str) or not isinstance(places, list) or not all(map(_is_place, places)):
            raise ValueError("not a registration: addresses are (IP, port) by interface")
    return addresses, key


def _is_place(place: object) -> bool:
    if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and isinstance(place[1], int)):
        return False
    try:
        ipaddress.IPv4Address(place[0])
    except ValueError:
        return False
    return 0 < place[1] < 65536


class Rendezvous(RendezvousServer):  # type: ignore[misc]
    """Listens on ``address`` only, from :meth:`serve` on."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(verbose=2 if verbose else 0)

    def serve(self, driver: PushedDriver, address: str) -> int:
        """Start answering for ``driver``; the port."""
        self._httpd = _Server((address, 0), _handler(driver), self._verbose)
        self._listen_thread = threading.Thread(target=self._httpd.serve_forever, name="hvd-rendezvous", daemon=True)
        self._listen_thread.start()
        return int(self._httpd.server_address[1])

    def stop(self) -> None:
        if self._httpd is not None:
            super().stop()
            self._httpd.server_close()


class _Server(RendezvousHTTPServer):  # type: ignore[misc]
    daemon_threads = True  # a question on hold must not keep the launcher from ending
    block_on_close = False
    request_queue_size = 256  # all ranks of a world come at once

    def __init__(self, address: tuple[str, int], handler: Any, verbose: int) -> None:
        self.arrived = threading.Condition()
        self.round = 0
        super().__init__(address, handler, verbose)

    def init(self, host_alloc_plan: list[SlotInfo]) -> None:
        super().init(host_alloc_plan)
        with self.arrived:
            self.round += 1  # whoever waits for a key of the round before must not get one of this
            self.arrived.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a rendezvous connection from %s broke off", client_address, exc_info=True)


def _handler(driver: PushedDriver) -> Any:
    elastic: Any = create_rendezvous_handler(driver)

    class Handler(elastic):  # type: ignore[misc]
        def do_HEAD(self) -> None:
            self.send_status_code(405)  # Horovod's handler inherits one that looks at files

        def do_PUT(self) -> None:
            scope, _, key = self.path.lstrip("/").partition("/")
            if scope != PUT_WORKER_ADDRESSES:
                super().do_PUT()
                with self.server.arrived:
                    self.server.arrived.notify_all()
                return
            try:
                size = int(self.headers.get("Content-Length", "0"))
                # One byte beyond the limit is enough for it to be refused as too long.
                addresses, secret = read_registration(self.rfile.read(min(size, MAX_REGISTRATION + 1)))
                host, slot = key.split(":")
                driver.register_worker_server(host, int(slot), addresses, secret)
            except ValueError as error:
                log.warning("a worker registration from %s was refused: %s", self.client_address[0], error)
                self.send_status_code(403)
                return
            self.send_status_code(200)

        def _get_value(self, scope: str, key: str) -> bytes | None:
            if scope == "rank_and_size":
                return self._rank_and_size(key)
            deadline = time.monotonic() + HOLD_S
            with self.server.arrived:
                asked_in = self.server.round
                while True:
                    if self.server.round != asked_in:
                        return None
                    value: bytes | None = super()._get_value(scope, key)
                    left = deadline - time.monotonic()
                    if value is not None or left <= 0:
                        return value
                    self.server.arrived.wait(left)

        def _rank_and_size(self, key: str) -> bytes:
            host, slot = key.split(":")
            answer: bytes = self._get_rank_and_size(host, int(slot))
            if driver.current_rank(host, int(slot)) is None:
                driver.dismiss(host, int(slot))
            return answer

    return Handler
