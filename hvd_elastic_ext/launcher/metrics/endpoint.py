"""The port at which Prometheus reads the metrics."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.metrics.gauges import PREFIX, JobMetric
from hvd_elastic_ext.launcher.options.listening import ListenAddress

COLLECT_TIMEOUT_S: Final = 5.0
"""Longest wait for the launcher's loop; then the request fails, and Prometheus asks again."""
MAX_CONNECTIONS: Final = 16
"""Most open connections; further ones are closed at once."""
IDLE_S: Final = 10.0
"""Longest time in seconds for a client to send its request, and to read the next part of the answer."""


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are :data:`MAX_CONNECTIONS`."""

    daemon_threads = True

    def __init__(self, address: ListenAddress) -> None:
        self.address_family, _, _, _, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((str(found[0]), int(found[1])), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: a client has disconnected, or does not send."""


class Endpoint(Collector):
    """Answers in threads of its own. Each request takes the metrics anew, in the loop's thread.

    Raises :class:`UsageError` if the port is not available.
    """

    def __init__(
        self, address: ListenAddress, take: Callable[[], Iterable[JobMetric]], loop: asyncio.AbstractEventLoop
    ):
        self._take, self._loop = take, loop
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = _Server(address)
        except OSError as error:  # also of a host that is no address of this machine
            raise UsageError(f"--metrics {address}: {error.strerror}; name another port") from None
        self.port: int = self._server.server_port
        self._answer = make_wsgi_app(registry)
        self._server.set_app(self._answered)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the metrics are known only when they are taken."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Called in a thread for each request."""
        yield from map(_family, asyncio.run_coroutine_threadsafe(self._taken(), self._loop).result(COLLECT_TIMEOUT_S))

    def _answered(self, environ: Any, start_response: Any) -> Any:
        try:
            return self._answer(environ, start_response)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the launcher is busy\n"]

    async def _taken(self) -> list[JobMetric]:
        return list(self._take())


def _family(metric: JobMetric) -> Metric:
    kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
    family = kind(PREFIX + metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.samples.items():
        family.add_metric(labels, value)
    return family
