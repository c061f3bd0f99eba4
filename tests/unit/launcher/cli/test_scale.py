"""The message of ``hvd-elastic scale`` for a job that does not exist here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli import scale


def test_a_job_that_is_not_here_may_be_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no job digits .*for a job on a cluster give -n NAMESPACE$"):
        scale.main(["digits", "3"])
