"""The port at which Prometheus reads the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.metrics.figures import PREFIX, Figure
from hvd_elastic_ext.launcher.options.listening import ListenAddress

TAKE_S: Final = 5.0
"""Longest wait for the launcher's loop; then the request fails, and Prometheus asks again."""


class Endpoint(Collector):
    """Answers in threads of its own. Each request takes the figures anew, in the loop's thread.

    Raises :class:`UsageError` if the port cannot be had.
    """

    def __init__(self, address: ListenAddress, take: Callable[[], Iterable[Figure]], loop: asyncio.AbstractEventLoop):
        self._take, self._loop = take, loop
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(address.port, address.host, registry)
        except OSError as error:  # also of a host that is no address of this machine
            raise UsageError(f"--metrics {address}: {error.strerror}; name another port") from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def describe(self) -> Iterable[Metric]:
        """Nothing: which figures there are is known when they are taken."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Called in a thread for each request."""
        yield from map(_family, asyncio.run_coroutine_threadsafe(self._taken(), self._loop).result(TAKE_S))

    async def _taken(self) -> list[Figure]:
        return list(self._take())


def _family(figure: Figure) -> Metric:
    kind = CounterMetricFamily if figure.counter else GaugeMetricFamily
    family = kind(PREFIX + figure.name, figure.help, labels=figure.labels)
    for labels, value in figure.samples.items():
        family.add_metric(labels, value)
    return family
