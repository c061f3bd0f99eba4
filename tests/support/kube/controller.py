"""What looks at the store whenever it changes, and acts: a thread with one beginning and one end."""

from __future__ import annotations

import threading
from typing import Final, Self

from tests.support.kube.resources import resource
from tests.support.kube.server import KubeServer

LOOK_S: Final = 0.1
"""The longest time between two looks: not all that counts is in the store."""


class Controller:
    """A context manager. A subclass has :meth:`look`.

    ``of``: the kind whose changes are looked at without delay. ``errors``: what a look has raised, which is the end.
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
        """Compare what is with what should be, and act; in the controller's thread."""
        raise NotImplementedError

    def leave(self) -> None:
        """After the last look: end what was started."""

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
