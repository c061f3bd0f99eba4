"""The States of :mod:`user_states` with our mixin in front."""

from __future__ import annotations

from typing import Any

import hvd_elastic_ext.torch as elastic
from tests.contract.worker.user_states import OLD

MIXED: dict[str, Any] = {
    name: type(f"Mixed{old.__name__}", (elastic.ElasticMixin, old), {}) for name, old in OLD.items()
}
