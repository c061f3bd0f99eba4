"""The tables of averages every H steps: they are what our classes would give, can go on, and little is sent."""

from __future__ import annotations

import copy
import json
import sys

import pytest
import torch
from torch.nn import functional as F

from benchmarks.scripts import averages
from benchmarks.scripts.averages import FRESH, KEPT, RANKS, Grid, Settings
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.optim.local_sgd import DiLoCo, LocalSGD

GRID = ["--rates", "0.01", "--outer-rates", "0.7", "--momenta", "0.5"]


def printed(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["averages", *words, *GRID])
    averages.main()
    return capsys.readouterr().out


def test_the_script_prints_a_row_for_each_kind_and_number_of_steps_and_goes_on_from_its_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    words = ["--seeds", "2", "--rank-steps", "8", "--every", "2", "4", "--tasks", "digits"]
    file = tmp_path / "results.json"
    out = printed(monkeypatch, capsys, *words, "--results", str(file))
    rows = [line for line in out.splitlines() if line.startswith(("| LocalSGD", "| DiLoCo"))]
    assert [row.split(" |")[0] for row in rows] == [
        "| LocalSGD, H = 2", "| LocalSGD, H = 4", "| DiLoCo, H = 2", "| DiLoCo, H = 4"
    ]  # fmt: skip
    known = json.loads(file.read_text())
    lost = known.popitem()
    file.write_text(json.dumps(known))
    computed = []
    monkeypatch.setattr(averages, "trained", lambda *args, of=averages.trained: computed.append(1) or of(*args))
    assert printed(monkeypatch, capsys, *words, "--results", str(file)) == out
    assert len(computed) == 1
    assert json.loads(file.read_text()) == {**known, lost[0]: lost[1]}, "the same seed gives the same figures"


def test_a_best_value_at_the_end_of_its_grid_is_marked_but_for_a_momentum_of_zero() -> None:
    grid = Grid((1, 2, 3), (0.5, 0.7, 1.0), (0.0, 0.5, 0.9))
    assert averages.described(Settings("synchronous", 1, 3), grid) == "3*"
    assert averages.described(Settings("DiLoCo", 4, 2, 1.0, 0.0), grid) == "2, 1*, 0"
    assert averages.described(Settings("DiLoCo", 4, 1, 0.7, 0.9), grid) == "1*, 0.7, 0.9*"


@pytest.mark.parametrize(
    ("task", "kind", "losses"),
    [("digits", "LocalSGD", FRESH), ("digits", "DiLoCo", ""), ("characters", "DiLoCo", KEPT)],
)
def test_many_models_at_once_become_what_our_classes_and_torchs_make_of_each(monkeypatch, task, kind, losses) -> None:
    """With two seeds, two rates, and a rank that is lost within a round."""
    monkeypatch.setattr(averages, "lost_at", lambda steps: {6: 1})
    task, rates, seeds, steps = averages.TASKS[task](), (0.001, 0.004), (3, 4), 10
    settings = Settings(kind, 4, 0.0, *((0.7, 0.5) if kind == "DiLoCo" else ()), losses)
    found = averages.trained(task, steps, seeds, rates, settings)
    wanted = [by_our_classes(task, steps, seed, settings._replace(rate=rate)) for rate in rates for seed in seeds]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-3, atol=1e-4)


def by_our_classes(task, steps, seed, settings):
    def begun():
        torch.manual_seed(seed)
        model = task.model.make()
        inner = torch.optim.AdamW(model.parameters(), lr=settings.rate)
        if settings.kind == "LocalSGD":
            return model, inner, LocalSGD(inner, every=settings.every)
        outer = torch.optim.SGD(model.parameters(), lr=settings.outer_rate, momentum=settings.momentum, nesterov=True)
        return model, inner, DiLoCo(model, inner, outer, every=settings.every)

    def loaded(rank, model, inner):
        rank[0].load_state_dict(model)
        rank[1].load_state_dict(inner)
        rank[2].begin()

    ranks, done = [begun() for _ in range(RANKS)], [0] * RANKS
    kept = [(copy.deepcopy(model.state_dict()), copy.deepcopy(inner.state_dict())) for model, inner, _ in ranks]
    for number, (inputs, labels) in enumerate(averages.batches(task, steps, [seed])):
        if number == 6 and settings.losses:
            others, done[1] = ranks[0], 0
            fresh = begun()
            ranks[1] = fresh
            loaded(fresh, kept[0][0], kept[1][1] if settings.losses == KEPT else fresh[1].state_dict())
            if others[2].outer is not None:
                fresh[2].outer.load_state_dict(copy.deepcopy(others[2].outer.state_dict()))
        for place, (model, inner, _) in enumerate(ranks):
            inner.param_groups[0]["lr"] = averages.decayed(torch.tensor(settings.rate), number, steps).item()
            inner.zero_grad()
            F.cross_entropy(model(inputs[0, place]), labels[0, place]).backward()
            inner.step()
            done[place] += 1
        if (number + 1) % settings.every == 0 or number + 1 == steps:
            parts = [
                rank[2].collect(AloneComms(), share=count / sum(done)) for rank, count in zip(ranks, done, strict=True)
            ]
            for rank in ranks:
                rank[2].apply([sum(each) for each in zip(*parts, strict=True)])
            kept = [(copy.deepcopy(model.state_dict()), copy.deepcopy(inner.state_dict())) for model, inner, _ in ranks]
            done = [0] * RANKS
    return torch.cat([parameter.detach().flatten() for parameter in ranks[0][0].parameters()])


@pytest.mark.parametrize("task", averages.TASKS)
def test_with_sixteen_steps_from_one_average_to_the_next_a_sixteenth_is_sent(task: str) -> None:
    ours, synchronous = averages.bytes_a_step(averages.TASKS[task](), 16)
    assert ours <= synchronous / 16 + 20, "and a table with a row of small numbers for each rank"
