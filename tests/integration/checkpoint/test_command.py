"""``hvd-elastic checkpoints``: what it says, and what it writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hvd_elastic_ext.checkpoint.format import result_file
from hvd_elastic_ext.checkpoint.format.manifest import RESULTS
from hvd_elastic_ext.checkpoint.format.result_file import Head
from hvd_elastic_ext.checkpoint.programs import cli
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.cli import main
from hvd_elastic_ext.core.commit_record import PAGE, Identity
from tests.integration.checkpoint.made_checkpoints import Trained, kept, save, trained
from tests.support import checkpoints
from tests.support.checkpoints import Held, held, identity, past, result_of


def filled(folder: Path) -> list[str]:
    """Two whole ones, a damaged one, and one that was never sealed; their names, the oldest first."""
    store = LocalStore(folder)
    commits = [held(identity(number), seed=number, step=number * 100) for number in (1, 2, 3, 4)]
    for commit in commits[:3]:
        checkpoints.save(store, commit)
    checkpoints.save_unsealed(store, commits[3])
    next((folder / commits[2].name).glob("shard-00001*")).unlink()
    return [commit.name for commit in commits]


def filled_by_a_job(folder: Path) -> str:
    """The same in ``store``, made by the job ``kept``; the name of the last one that its journal tells of."""
    name = filled(folder / "store")[1]
    job = folder / ".hvd-elastic" / "kept"
    job.mkdir(parents=True)
    sealed = {
        "t": 1.0, "mono": 1.0, "generation": 1, "event": "sealed", "path": str(folder / "store" / name), "step": 200,
    }  # fmt: skip
    (job / "journal.jsonl").write_text(json.dumps(sealed) + "\n")
    return name


def test_it_lists_what_is_there_the_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = filled(tmp_path)
    assert main(["checkpoints", "list", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("0")]
    assert [line.split()[0] for line in lines] == names[::-1]
    assert "never sealed" in lines[0]
    assert "damaged: shard-00001-of-00002" in lines[1]
    assert lines[2].split()[1:] == ["200", "2", "9.24", "kB", "whole"]


def test_a_list_as_json_has_every_checkpoint_newest_first_and_which_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = filled(tmp_path)
    assert main(["checkpoints", "list", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told] == names[::-1]
    assert [one["whole"] for one in told] == [False, False, True, True]


def test_an_empty_folder_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "list", str(tmp_path)]) == 0
    assert "no checkpoints in" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "list", str(tmp_path / "misspelt")]) == 2
    assert f"there is no folder {tmp_path / 'misspelt'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["kept"], ["--job", "kept"], [".hvd-elastic/kept"], []],
    ids=["by name", "by option", "by folder", "the newest"],
)
def test_a_jobs_name_leads_to_where_it_made_its_last_checkpoint(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = filled_by_a_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", "list", *words]) == 0
    assert newest in capsys.readouterr().out


def test_prune_removes_nothing_until_its_folder_or_job_is_named_and_offers_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: without DIR it removed checkpoints of the newest job, without a question."""
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", "prune"]) == 2
    only_line = "hvd-elastic checkpoints: prune removes checkpoints: name their DIR or their job"
    assert capsys.readouterr().err == f"{only_line}\n"
    filled_by_a_job(tmp_path)
    before = sorted((tmp_path / "store").iterdir())
    assert main(["checkpoints", "prune", "--last", "1"]) == 2
    newest = f"hvd-elastic checkpoints prune {tmp_path}/store --last 1"
    assert capsys.readouterr().err == f"{only_line}; for the newest job here: {newest}\n"
    assert sorted((tmp_path / "store").iterdir()) == before
    assert main(["checkpoints", "prune", "--job", "kept", "--last", "1"]) == 0


def test_a_job_without_a_checkpoint_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / ".hvd-elastic" / "young"
    job.mkdir(parents=True)
    (job / "journal.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", "list", "young"]) == 2
    assert "young/journal.jsonl has no record of a checkpoint; give the folder or URL" in capsys.readouterr().err


def test_a_job_that_has_not_completed_its_first_checkpoint_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / ".hvd-elastic" / "young"
    job.mkdir(parents=True)
    started = {"t": 1.0, "mono": 1.0, "generation": 0, "event": "started", "checkpoints": "/store"}
    (job / "journal.jsonl").write_text(json.dumps(started) + "\n")
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", "list", "--job", "young"]) == 2
    assert "young/journal.jsonl: no checkpoint has been completed; they go to /store" in capsys.readouterr().err


def test_verify_reads_every_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = filled(tmp_path)
    assert main(["checkpoints", "verify", str(tmp_path), names[0]]) == 0
    shard = next((tmp_path / names[0]).glob("shard-*"))
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["checkpoints", "list", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["checkpoints", "verify", str(tmp_path), "--json"]) == 1
    told = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert [told[name]["whole"] for name in names[:3]] == [False, True, False]
    assert "block 0 of 1 is not what was written" in told[names[0]]["why"]
    assert main(["checkpoints", "verify", str(tmp_path), "nobody"]) == 1
    assert "checkpoint nobody in" in capsys.readouterr().err


def test_prune_removes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = filled(tmp_path)
    assert main(["checkpoints", "prune", str(tmp_path), "--last", "1", "--dry-run"]) == 0
    assert f"{names[0]} (step 100): would be removed: older than the newest one" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 4
    assert main(["checkpoints", "prune", str(tmp_path), "--last", "1", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == [names[0]]
    assert sorted(path.name for path in tmp_path.iterdir()) == names[1:]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Trained]:
    store, model = tmp_path / "store", trained()
    with kept(model, Identity(7, 0, 1, 5)) as one:
        save(store, [one])
    return store, model


def test_it_exports_what_torch_loads(saved: tuple[Path, Trained], tmp_path: Path) -> None:
    store, model = saved
    out = tmp_path / "out.pt"
    assert main(["checkpoints", "export", str(store), "--to", str(out)]) == 0
    loaded = torch.load(out, weights_only=True)
    assert (loaded["epoch"], loaded["names"]) == (5, ("a", "b"))
    assert not [name for name in loaded if "class" in name], "only what the State had"
    assert torch.equal(loaded["history"], torch.arange(5.0) + 5)
    other = trained(8)
    for parameter in other.model.parameters():
        parameter.data.zero_()
    other.model.load_state_dict(loaded["model"])
    other.optimizer.load_state_dict(loaded["optimizer"])
    for ours, theirs in zip(other.model.state_dict().values(), model.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert loaded["model"]["0.weight"].is_contiguous(memory_format=torch.channels_last)
    moments = model.optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(other.optimizer.state_dict()["state"][0]["exp_avg"], moments)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.pt"]


def test_it_exports_what_safetensors_loads(saved: tuple[Path, Trained], tmp_path: Path) -> None:
    store, model = saved
    out = tmp_path / "out.safetensors"
    assert main(["checkpoints", "export", str(store), "--to", str(out)]) == 0
    with safe_open(out, "pt") as opened:
        for name, value in model.model.state_dict().items():
            assert torch.equal(opened.get_tensor(f"model.{name}"), value)
        plain = json.loads(opened.metadata()["plain"])
    assert plain["epoch"] == 5
    assert plain["model"]["0.weight"] == {"tensor": "model.0.weight"}


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_file_that_is_there_is_replaced_only_by_force(
    ending: str, saved: tuple[Path, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = saved
    out = tmp_path / f"out.{ending}"
    out.write_bytes(b"precious")
    words = ["checkpoints", "export", str(store), "--to", str(out)]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"hvd-elastic checkpoints: {out} already exists; name another file, or give --force to replace it\n"
    )
    assert out.read_bytes() == b"precious"
    assert main([*words, "--force"]) == 0
    assert out.stat().st_size > 100


def in_memory(of: Trained, number: int, *, call: int) -> Held:
    """The commit of a training process, in a call."""
    with kept(of, Identity(7, 0, 1, number), step=10 * number) as one:
        commit = os.pread(one.descriptor, one.record.total, PAGE)
        return Held(one.record._replace(call=call), commit, None, None)


@pytest.fixture
def third_call(tmp_path: Path) -> tuple[Path, Trained]:
    """A checkpoint of call 3, whose first call had a State and whose second had none; the model of the first."""
    place, model = tmp_path / "calls", trained(4)
    first = result_of(in_memory(model, 1, call=1), value="0.5")
    with past(b"call 0", first, result_file.encode_head(Head("program", "0.25"))) as slot:
        checkpoints.save(LocalStore(place), in_memory(trained(8), 5, call=3), parts=1, past=slot)
    return place, model


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_the_state_of_a_finished_call_is_exported_as_that_of_the_call_in_progress(
    ending: str, third_call: tuple[Path, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, model = third_call
    first, now, third = (tmp_path / f"{name}.{ending}" for name in ("first", "now", "third"))
    export = ["checkpoints", "export", str(store), "--to"]
    assert main([*export, str(first), "--call", "1"]) == 0
    assert re.search(r"\(step 50\), call 1: \d+ tensors to ", capsys.readouterr().out)
    assert main([*export, str(now)]) == main([*export, str(third), "--call", "3"]) == 0
    if ending == "pt":
        loaded = torch.load(first, weights_only=True)
        assert loaded["epoch"] == 1
        assert torch.load(now, weights_only=True)["epoch"] == torch.load(third, weights_only=True)["epoch"] == 5
        for name, value in model.model.state_dict().items():
            assert torch.equal(loaded["model"][name], value)
        assert loaded["optimizer"].keys() == model.optimizer.state_dict().keys()
    else:
        for path in (now, third):
            with safe_open(path, "pt") as opened:
                assert json.loads(opened.metadata()["plain"])["epoch"] == 5
        with safe_open(first, "pt") as opened:
            assert json.loads(opened.metadata()["plain"])["epoch"] == 1
            for name, value in model.model.state_dict().items():
                assert torch.equal(opened.get_tensor(f"model.{name}"), value)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("7", "--call 7: checkpoint NAME is of call 3, with the results of the finished calls 1, 2; "
              "give one of these, or leave out --call"),
        ("2", "--call 2: that call of checkpoint NAME had no State, so there is nothing to export"),
        ("0", "--call 0: the calls have the numbers 1, 2, 3 …; give one of these, or leave out --call"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_exported_is_refused_in_one_line(
    call: str, why: str, third_call: tuple[Path, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = third_call
    name = next(each.name for each in store.iterdir() if each.name != RESULTS)
    assert main(["checkpoints", "export", str(store), "--to", str(tmp_path / "out.pt"), "--call", call]) == 2
    assert capsys.readouterr().err == f"hvd-elastic checkpoints: {why.replace('NAME', name)}\n"
    assert not (tmp_path / "out.pt").exists()


def test_a_call_of_a_checkpoint_that_does_not_say_its_call_is_refused(
    saved: tuple[Path, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", "export", str(saved[0]), "--to", str(tmp_path / "out.pt"), "--call", "1"]) == 2
    assert "does not say its call; leave out --call" in capsys.readouterr().err


def test_a_result_that_is_damaged_is_not_exported_and_verify_names_its_file(
    third_call: tuple[Path, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = third_call
    (file,) = (store / RESULTS).glob("result-00001-*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert main(["checkpoints", "export", str(store), "--to", str(tmp_path / "out.pt"), "--call", "1"]) == 1
    assert "is not what was written; take the one before" in capsys.readouterr().err
    assert main(["checkpoints", "verify", str(store)]) == 1
    assert f"damaged: {file.name}: block 0 of 1 is not what was written" in capsys.readouterr().out
    assert main(["checkpoints", "export", str(store), "--to", str(tmp_path / "out.pt")]) == 0, "its own call is whole"


def test_the_list_shows_the_call_once_there_was_a_second_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, command = LocalStore(tmp_path), ["checkpoints", "list", str(tmp_path)]
    checkpoints.save(store, held(identity(1), call=1, step=10))
    assert main(command) == 0
    assert "call" not in capsys.readouterr().out
    with past(b"call 0", result_of(held())) as slot:
        checkpoints.save(store, held(identity(2), call=2, step=20), past=slot)
        checkpoints.save(store, held(identity(3), call=3, step=30), past=slot)
    assert main(command) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    heading, *lines = [words for words in told if words and words[0][0] in "c0"]
    assert heading[:3] == ["checkpoint", "call", "step"]
    assert [line[1:3] for line in lines] == [["3", "30"], ["2", "20"], ["1", "10"]]
    lacks = "it is of call 3, and the result of call 2 was not kept"
    assert " ".join(lines[0]).endswith(f"whole; no job can resume from it: {lacks}")
    assert lines[1][-1] == "whole"
    assert main([*command, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["call"], one["resumable"], one["not_resumable"]) for one in listed] == [
        (3, False, lacks), (2, True, ""), (1, True, ""),
    ]  # fmt: skip


def test_a_command_that_cannot_be_done_is_refused_in_one_line(
    saved: tuple[Path, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = saved
    (tmp_path / "empty").mkdir()
    assert main(["checkpoints", "export", str(store), "--to", str(tmp_path / "out.zip")]) == 2
    assert main(["checkpoints", "export", str(store), "--to", str(tmp_path / "no" / "out.pt")]) == 1
    assert main(["checkpoints", "export", str(tmp_path / "empty"), "--to", str(tmp_path / "out.pt")]) == 1
    assert main(["checkpoints", "list", str(store), "--store-options", "{"]) == 2
    assert main(["checkpoints", "prune", str(store), "--last", "0"]) == 2
    assert main(["checkpoints", "list", "nobody://bucket"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6, lines
    assert all(line.startswith("hvd-elastic checkpoints: ") for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["memory://x", "--store-options", '{"key": "A", "secret": "hunter2"'],
        ["memory://x", "--store-options", '{"key": "A", "secret": "hunter2"}'],
        ["memory://x", "--store-options", '{"client_kwargs": {"aws_secret_access_key": "hunter2"}}'],
        ["memory://x", "--store-options", '["hunter2"]'],
        ["memory://x", "--store-options", "@FILE"],
        ["memory://x", "--store-options", "@FILE/none"],
        ["memory://x", "--store-options", "[" * 100_000],
        ["zip://a::https://me:hunter2@host/x"],
        ["https://host/x?sig=hunter2"],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_a_secret_is_not_taken_from_the_command_line_and_never_repeated(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text('{"secret": "hunter2"')
    assert main(["checkpoints", "list", *(word.replace("FILE", str(tmp_path / "file")) for word in words)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "hunter2" not in said


def test_options_of_a_store_come_from_the_command_line_or_with_secrets_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"key": "A", "secret": "hunter2"}')
    assert cli._store_options(f"@{tmp_path / 'file'}") == {"key": "A", "secret": "hunter2"}
    assert cli._store_options('{"anon": true, "endpoint_url": "http://h:1"}') == {
        "anon": True,
        "endpoint_url": "http://h:1",
    }
    assert cli._store_options(None) == {}
