"""Each cloud has its module, its tests and its lines in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.agent.notices.poller import class_of
from hvd_elastic_ext.core.notice_sources import CLOUDS
from tests.contract.notices.test_looks import KINDS
from tests.contract.notices.test_services import SERVICES
from tests.unit.agent.notices.test_poller import FIRMWARE

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_cloud_has_all_that_belongs_to_it(cloud: str) -> None:
    health, run = ((DOCS / page).read_text(encoding="utf-8") for page in ("health.md", "run.md"))
    there = {
        "agent/notices: a module of its name, with its class as CLOUD": class_of(cloud)().name == cloud,
        "a stand-in in tests/support/metadata, and its entry in test_looks.py: KINDS": cloud in KINDS,
        "tests/contract/notices/test_services.py: SERVICES": cloud in SERVICES,
        "tests/unit/agent/notices/test_poller.py: FIRMWARE": any(name.partition(",")[0] == cloud for name in FIRMWARE),
        "docs/health.md: a row of its table": f"| `{cloud}`" in health,
        "docs/run.md: --notices-from": cloud in next(line for line in run.splitlines() if "--notices-from" in line),
    }
    missing = [place for place, is_there in there.items() if not is_there]
    assert not missing, "\n".join(missing)
