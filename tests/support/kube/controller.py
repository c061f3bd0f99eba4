"""The base of controllers: a thread that looks at the store after each change, and acts."""

from __future__ import annotations

import threading
from typing import Final, Self

from tests.support.kube.resources import resource
from tests.support.kube.server import KubeServer

LOOK_S: Final = 0.1
"""Most seconds between two looks, because a look may also depend on things outside the store."""


class Controller:
    """A context manager. A subclass defines :meth:`look`.

    ``of``: the kind whose changes lead to a look at once. ``errors``: what a look has raised; the thread ends then.
    """

    def __init__(self, kube: KubeServer, *, name: str, of: str = "pods") -> None:
        self.kube = kube
        self.errors: list[BaseException] = []
        self._changed = kube.store.shelf(resource(of)).changed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.kube.store.wake()
        self._thread.join()
        self.leave()

    def look(self) -> None:
        """Compare the present state with the wanted one, and act. The controller's thread calls this."""
        raise NotImplementedError

    def leave(self) -> None:
        """End what was started. Called after the last look."""

    def _run(self) -> None:
        store = self.kube.store
        try:
            while not self._ending.is_set():
                seen = store.revision
                self.look()
                with store.lock:
                    if store.revision == seen and not self._ending.is_set():
                        self._changed.wait(LOOK_S)
        except BaseException as error:
            if not self._ending.is_set():
                self.errors.append(error)
            raise
