"""The port at which Prometheus reads the metrics."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hvd_elastic_ext.core.connections import MOST
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.http_server import HttpServer, Response
from hvd_elastic_ext.io.threads.beside import report
from hvd_elastic_ext.launcher.exports.prometheus import PREFIX

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.exports.prometheus import JobMetric
    from hvd_elastic_ext.launcher.options.settings import ListenAddress


# --- the port


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text form that every version of Prometheus reads."""
COLLECT_TIMEOUT_S: Final = 5.0
"""Longest wait for the launcher's loop; then the request fails, and Prometheus asks again."""


class Endpoint(Collector):
    """Answers in threads of its own. Each request takes the metrics anew, in the loop's thread.

    Every path and every wanted format get the same text: what a client sends decides nothing, and so breaks nothing.

    Raises :class:`UsageError` if the port is not available.
    """

    def __init__(
        self, address: ListenAddress, take: Callable[[], Iterable[JobMetric]], loop: asyncio.AbstractEventLoop
    ):
        self._take, self._loop = take, loop
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._defects: set[str] = set()
        try:
            family, _, _, _, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            self._server = HttpServer((str(found[0]), int(found[1])), self, most=MOST, family=family)
        except OSError as error:  # also of a host that is not an address of this machine
            raise UsageError(f"--metrics {address}: {error.strerror}; name another port") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more, and disconnect all clients."""
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the metrics are known only when they are taken."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Called in a thread for each request."""
        yield from map(_family, asyncio.run_coroutine_threadsafe(self._taken(), self._loop).result(COLLECT_TIMEOUT_S))

    def answer(self, target: str, woken: threading.Event) -> Response:
        """Return the metrics. Called in a thread for each request."""
        try:
            return Response(200, generate_latest(self._registry), CONTENT_TYPE)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            return Response(503, b"the launcher is busy\n")
        except Exception as error:  # noqa: BLE001 - beside training
            if not self._defects:  # whoever asks decides how often this happens
                report(error, self._defects, "the job goes on; the metrics are not answered")
            return Response(500, b"a defect of hvd-elastic: the launcher's log has it\n")

    async def _taken(self) -> list[JobMetric]:
        return list(self._take())


def _family(metric: JobMetric) -> Metric:
    kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
    family = kind(PREFIX + metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.samples.items():
        family.add_metric(labels, value)
    return family
