"""What a part says of itself outlives the job: written to storage as text without pickle, it is what was committed."""

from __future__ import annotations

import dataclasses

from hvd_elastic_ext.checkpoint import graph
from tests.contract.parts.cases import Case, committed, put_back


def test_what_has_been_on_storage_is_what_was_committed(case: Case) -> None:
    case.change()
    commit, newcomer = committed(case.part), case.build(2)
    text = graph.to_json(commit.tree)
    tree = graph.from_json(text)
    assert graph.to_json(tree) == text
    put_back(newcomer.part, dataclasses.replace(commit, tree=tree), received=True)
    assert committed(newcomer.part) == commit
