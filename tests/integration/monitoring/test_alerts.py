"""Alert rules and the dashboard, with Prometheus' own tool: what the launcher tells of a story raises its alert."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hvd_elastic_ext.agent.metrics import PREFIX as OF_AGENT
from hvd_elastic_ext.agent.slots.slot import Slot
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Journal, read
from hvd_elastic_ext.launcher.driver.roster import USAGE
from hvd_elastic_ext.launcher.exports.metrics_port import _family
from hvd_elastic_ext.launcher.exports.prometheus import PREFIX, RESERVED_NAMES, Counters, JobMetric, of_job
from tests.support.clock import ManualClock
from tests.unit.agent.test_metrics import figures
from tests.unit.launcher.scenarios import play

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
FOLDER = Path(__file__).parents[3] / "docker/monitoring"
ALERTS = FOLDER / "alerts.yaml"
GRAFANA = FOLDER / "grafana.json"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
SCRAPES = 90
"""One a minute."""
TARGET = {"job": "training", "instance": "launcher:9464"}
GAUGES = {"waiting": 0.0, "asleep": 0.0, "step_seconds": 0.1, "progress_age_seconds": 0.2, "agent_connected": 1.0}
CRASH = {"cause": "crashed", "subject": "slot 0 of h1"}
LOSS = {"cause": "worker failed", "downtime_s": 1.0, "steps_lost": 5}
PAUSE = {"cause": "hosts removed", "downtime_s": 100.0, "steps_lost": 0}


Sample = tuple[str, tuple[str, ...], tuple[str, ...], float]
"""Name, labels, their values, value."""


class Story(NamedTuple):
    """Events of the journal by minute, and gauges that are so from minute 20 on. ``at``: the minute that is asked."""

    events: Mapping[int, tuple[str, Mapping[str, Any]]] = {}
    gauges: Mapping[str, float] = {}
    at: int = 40


SEALED = ("sealed", {"step": 7, "seconds": 1.0, "bytes": 10})
GIVEN_UP = ("not_sealed", {"reason": "No space left on device"})
STORIES = {
    "HvdElasticWaits": Story(gauges={"waiting": 1.0}),
    "HvdElasticNoProgress": Story(gauges={"progress_age_seconds": 90.0}),
    "HvdElasticFailsAgainAndAgain": Story(dict.fromkeys((20, 24, 28, 32, 36), ("struck", CRASH))),
    "HvdElasticStepsLost": Story({30: ("resized", LOSS)}),
    "HvdElasticBeginsFromScratch": Story({30: ("training_restarted", {"reason": "nothing is left"})}),
    "HvdElasticDowntime": Story(dict.fromkeys((20, 25, 30, 35), ("resized", PAUSE))),
    "HvdElasticCheckpointOld": Story({5: SEALED}, at=80),
    "HvdElasticCheckpointsFail": Story({10: SEALED, **dict.fromkeys((52, 55, 58), GIVEN_UP)}, at=62),
    "HvdElasticGetsNoHosts": Story({minute: ("not_scaled", {"reason": "quota"}) for minute in (30, 33, 36, 39)}),
    "HvdElasticAgentAlone": Story(gauges={"agent_connected": 0.0}),
}
QUIET = {
    "a job that trains": Story(dict.fromkeys(range(0, SCRAPES, 30), SEALED)),
    "a job that grows and shrinks": Story(
        {
            minute: ("resized", {"cause": "hosts added", "downtime_s": 0.2, "steps_lost": 0})
            for minute in range(10, 90, 5)
        }
    ),
    "a host that crashes twice": Story({30: ("struck", CRASH), 35: ("struck", CRASH)}),
    "checkpoints of which some fail": Story({20: SEALED, 25: GIVEN_UP, 28: GIVEN_UP, 31: GIVEN_UP, 35: SEALED}, at=40),
    "a job that sleeps": Story({5: SEALED}, {"waiting": 1.0, "asleep": 1.0}, at=80),
    "a short wait": Story(gauges={"waiting": 1.0}, at=25),
}


def replay(counters: Counters, event: str, fields: Mapping[str, Any]) -> None:
    """Have it counted as a line of a journal that is read back."""
    sink = io.StringIO()
    Journal(sink, ManualClock()).record(event, generation=1, **fields)
    [record] = read(sink.getvalue().splitlines())
    counters.note(record.event, record.fields)


def series(story: Story) -> list[dict[str, str]]:
    """What Prometheus has read, a reading a minute."""
    now = 0.0
    counters = Counters(lambda: now, lambda: now)
    replay(counters, "published", {"hosts": {"a": 1}})
    replay(counters, "resized", {"cause": "start", "downtime_s": None, "steps_lost": None})
    read: dict[str, list[str]] = {}
    for minute in range(SCRAPES):
        now = 60.0 * minute
        replay(counters, "stepped", {"step": 10 * minute + 1, "size": 1, "rank": 0})
        if minute in story.events:
            replay(counters, *story.events[minute])
        told = dict(chain(GAUGES.items(), story.gauges.items() if minute >= 20 else ()))
        samples: list[Sample] = [(name, (), (), value) for name, value in told.items()]
        for figure in counters.metrics():
            name = f"{figure.name}_total" if figure.counter else figure.name
            samples += [(name, figure.labels, key, value) for key, value in figure.samples.items()]
        for name, labels, key, value in samples:
            words = {**TARGET, **dict(zip(labels, key, strict=True))}
            inside = ",".join(f'{label}="{word}"' for label, word in words.items())
            values = read.setdefault(f"{PREFIX}{name}{{{inside}}}", ["_"] * minute)
            values.append(str(value))
    return [{"series": name, "values": " ".join(values)} for name, values in read.items()]


def promtool(folder: Path, *words: str, **files: object) -> subprocess.CompletedProcess[str]:
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, check=False)


def check(folder: Path, story: Story, alerts: Mapping[str, bool]) -> str:
    """What promtool says of a story in which exactly these alerts are raised; "" if that is so."""
    shutil.copy(ALERTS, folder)
    rules = {rule["alert"]: rule for rule in RULES}
    expected = []
    for name, raised in alerts.items():
        cause = {"cause": "crashed"} if name == "HvdElasticFailsAgainAndAgain" else {}
        labels = {**TARGET, **cause, **rules[name]["labels"]}
        told = dict(rules[name]["annotations"])
        for label, value in (*TARGET.items(), *cause.items()):
            told = {key: text.replace(f"{{{{ $labels.{label} }}}}", value) for key, text in told.items()}
        raised_now = [{"exp_labels": labels, "exp_annotations": told}] if raised else []
        expected.append({"eval_time": f"{story.at}m", "alertname": name, "exp_alerts": raised_now})
    test = {"interval": "1m", "input_series": series(story), "alert_rule_test": expected}
    done = promtool(folder, "test", "rules", "story.yaml", story={"rule_files": ["alerts.yaml"], "tests": [test]})
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_a_story() -> None:
    assert [rule["alert"] for rule in RULES] == list(STORIES)


@needs_promtool
@pytest.mark.parametrize("name", STORIES)
def test_an_alert_is_raised_by_its_story(name: str, tmp_path: Path) -> None:
    assert check(tmp_path, STORIES[name], {name: True}) == ""


@needs_promtool
@pytest.mark.parametrize("name", QUIET)
def test_what_is_usual_raises_none(name: str, tmp_path: Path) -> None:
    assert check(tmp_path, QUIET[name], dict.fromkeys(STORIES, False)) == ""


def metrics_in(expressions: Iterable[str]) -> set[str]:
    return {name for text in expressions for name in re.findall(rf"{PREFIX}(\w+)", text)}


def names_of_agents() -> set[str]:
    with figures() as (agent, told):
        list(told.present())
        agent.time = 10.0  # GPUs are told from the second time on
        names = [f"{figure.name}_total" if figure.counts else figure.name for figure in told.present()]
    return {f"{OF_AGENT}{name}".removeprefix(PREFIX) for name in names}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(GRAFANA.read_text())["panels"]
    return found


def test_alerts_and_dashboard_ask_for_figures_that_the_launcher_tells() -> None:
    counters = Counters(lambda: 0.0, lambda: 0.0)
    counters.note("started", {"job": "j", "run": "r", "version": "v"})
    known = (
        RESERVED_NAMES | {f"{figure.name}_total" for figure in counters.metrics() if figure.counter} | names_of_agents()
    )
    asked = metrics_in([rule["expr"] for rule in RULES])
    shown = metrics_in(target["expr"] for panel in panels() for target in panel.get("targets", ()))
    assert asked <= known
    assert shown <= known
    assert len(shown) > 15


@needs_promtool
def test_every_expression_of_the_dashboard_is_one(tmp_path: Path) -> None:
    variables = {"$__range_s": "3600", "$__range": "1h", "$__rate_interval": "5m"}
    texts = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    for name, value in variables.items():
        texts = [text.replace(name, value) for text in texts]
    rules = [{"record": f"shown:{number}", "expr": text} for number, text in enumerate(texts)]
    done = promtool(tmp_path, "check", "rules", "shown.yaml", shown={"groups": [{"name": "shown", "rules": rules}]})
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_every_expression_of_the_dashboard_finds_what_launcher_and_agents_tell(tmp_path: Path) -> None:
    read = [
        {"series": f"{sample.name}{{{inside}}}", "values": f"{sample.value}+{sample.value}x{SCRAPES}"}
        for family in text_string_to_metric_families(exposed())
        for sample in family.samples
        if (inside := ",".join(f'{name}="{word}"' for name, word in {**TARGET, **sample.labels}.items()))
    ]
    texts = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    for name, value in {"$__range_s": "3600", "$__range": "1h", "$__rate_interval": "5m", "$instance": ".*"}.items():
        texts = [text.replace(name, value) for text in texts]
    asked = [{"expr": f"absent({each})", "eval_time": "80m", "exp_samples": []} for each in texts]
    tests = [{"interval": "1m", "input_series": read, "promql_expr_test": asked}]
    done = promtool(tmp_path, "test", "rules", "panels.yaml", panels={"rule_files": [], "tests": tests})
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_label_is_one_that_prometheus_sets_itself() -> None:
    samples = [sample for family in text_string_to_metric_families(exposed()) for sample in family.samples]
    assert {name for sample in samples for name in sample.labels}.isdisjoint(TARGET)


@needs_promtool
def test_every_amount_that_the_docs_compute_has_a_value(tmp_path: Path) -> None:
    text = (FOLDER.parents[1] / "docs/metrics.md").read_text().partition("| question | expression |")[2]
    found: list[str] = re.findall(r"^\|[^|]*\| `(.*)` \|$", text.partition("\n##")[0], re.MULTILINE)
    amounts = [each for each in found if not re.search("[<>=] ", each)]
    assert len(amounts) == 3
    story = Story({5: SEALED, 30: ("resized", LOSS)})
    asked = [{"expr": f"absent({each})", "eval_time": f"{story.at}m", "exp_samples": []} for each in amounts]
    tests = [{"interval": "1m", "input_series": series(story), "promql_expr_test": asked}]
    done = promtool(tmp_path, "test", "rules", "docs.yaml", docs={"rule_files": [], "tests": tests})
    assert done.returncode == 0, done.stdout + done.stderr


def exposed() -> str:
    """What Prometheus reads from a launcher and an agent of a job that has all that can be told."""
    cluster = play("train a b")
    cluster.run(5.0)
    now = 0.0
    job, counters = cluster.driver.job, Counters(lambda: now, lambda: now)
    job.scaling.wanted = 3
    for agent in job.roster.agents.values():
        agent.usage = dict.fromkeys(USAGE, 0.5)
    for worker in job.roster.workers.values():
        worker.step_s, worker.commit_s = 0.2, 0.1
    events: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("started", {"job": "j", "run": "r", "version": "v"}),
        ("published", {"hosts": {"a": 1, "b": 1}}),
        *(("stepped", {"step": step, "size": 2}) for step in range(1, 9)),
        SEALED,
    )
    for event, fields in events:
        now += 1.0
        counters.note(event, fields)
    of_launcher: Any = CollectorRegistry()
    asleep = JobMetric("asleep", "1 while the job sleeps", {(): 1.0})  # the job's, as it has no state then
    told = (asleep, *of_job(job, job.now, HostSet.of({"a": 1})), *counters.metrics())
    of_launcher.collect = lambda: [_family(figure) for figure in told]
    with figures() as (agent, of_agent):
        agent.slots[0] = Slot(0, agent)
        of_agent.answer()
        agent.time = 10.0
        return generate_latest(of_launcher).decode() + of_agent.answer()[1].decode()


@needs_promtool
def test_names_and_types_are_as_prometheus_has_them() -> None:
    words = ["promtool", "check", "metrics"]
    done = subprocess.run(words, input=exposed(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
