"""Handlers that the user registered with Horovod for types of their own, as parts of a State."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from hvd_elastic_ext.checkpoint.values.write import is_fit
from hvd_elastic_ext.worker.parts import Part, tensor_trees

log = logging.getLogger(__name__)


class HandlerPart(Part):
    """A handler that the user registered with Horovod for a type of their own.

    A handler keeps its saved state in attributes of its own. These are committed, so that each restore uses the same
    bytes, and the newest commit of any rank.
    """

    reload = True
    has_sync = True

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.value = handler.value
        self._left_out: set[str] = set()
        handler.save()

    def capture(self) -> Any:
        """Run the handler's ``save`` and return the values of its attributes after that.

        If ``save`` has assigned an attribute that cannot be committed, it is left out; a warning names it once.
        """
        before = dict(vars(self.handler))
        self.handler.save()
        after = {key: value for key, value in vars(self.handler).items() if key != "value" and value is not self.value}
        fresh = {key for key, value in after.items() if value is not before.get(key)}
        saved = {key: value for key, value in after.items() if _is_saved(value, fresh=key in fresh)}
        for key in sorted(fresh - saved.keys() - self._left_out):
            self._left_out.add(key)
            log.warning(
                "%s.save keeps something in %s (%s) that cannot be committed: it rolls back as far as its restore "
                "makes it, and does not outlive the process",
                type(self.handler).__name__, key, type(after[key]).__name__,
            )  # fmt: skip
        return tensor_trees.apart(saved)

    def restore(self, tree: Any) -> None:
        """Assign the committed attributes to the handler, then run its ``restore``."""
        tensor_trees.assign(self.handler, tree)
        self.handler.restore()

    def sync(self) -> None:
        """Run the handler's ``sync``."""
        self.handler.sync()


def _is_saved(value: object, *, fresh: bool) -> bool:
    """Whether a handler's attribute holds saved state. A model that the last save has assigned is a copy."""
    return fresh if isinstance(value, nn.Module) else is_fit(value)
