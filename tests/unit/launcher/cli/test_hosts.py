"""What `hvd-elastic hosts` says of folders that are not the user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli import hosts

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users: run the tests as root")
def test_root_is_told_whose_job_it_is_and_not_to_take_it_over(tmp_path: Path) -> None:
    folder = tmp_path / ".hvd-elastic" / "theirs"
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(UsageError) as found:
        hosts.main(["list", "--state-dir", str(folder)])
    assert str(found.value) == f"{folder} belongs to user nobody; give this command as that user, with sudo -u nobody"


def test_ones_own_folder_that_others_may_write_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match=f"chmod o-w {folder}"):
        hosts.main(["list", "--state-dir", str(folder)])
