"""Resolves a revision of a git repository to a commit, for ``--sync git+URL@REV``. Uses ``git``."""

from __future__ import annotations

import re
import subprocess
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io import git
from hvd_elastic_ext.jobs.spec.source import Revision, without_user

_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?", re.ASCII)


def resolved(wanted: Revision) -> Revision:
    """Return the source with a commit id, so that every pod, also a later one, gets the same commit. Raises
    :class:`UsageError`."""
    if _COMMIT.fullmatch(wanted.revision):
        return wanted
    name = wanted.revision
    # As git itself decides between a tag and a branch of one name; ``^{}`` is the commit of an annotated tag.
    names = (name, f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}")
    found = _asked(wanted, names)
    commit = next((found[each] for each in names if each in found), None)
    if commit is None:
        raise UsageError(
            f"--sync git+{wanted.url}@{name}: there is no branch or tag {name}; of a commit give the whole id"
        )
    return wanted._replace(revision=commit)


def _asked(wanted: Revision, names: tuple[str, ...]) -> dict[str, str]:
    """Return the commit of each reference."""
    try:
        with git.clean_repository() as clean:
            listed = git.run(["ls-remote", "--", wanted.url, *names], clean=clean)
    except FileNotFoundError:
        raise UsageError(f"git finds out what {wanted.revision} is, and is not installed; give a commit id") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"--sync git+{wanted.url}: no answer within {git.TIMEOUT_S:g} s") from None
    except git.GitFails as error:
        problem = without_user(" ".join(str(error).split()))[:300]
        raise UsageError(f"--sync git+{wanted.url}: git fails: {problem}") from None
    rows = (line.split("\t") for line in listed.decode("utf-8", "replace").splitlines())
    return {row[1]: row[0] for row in rows if len(row) == 2 and _COMMIT.fullmatch(row[0])}
