"""A cluster whose pods are processes of this machine: it really starts the MPIJobs and TrainingJobs that it is given.

What the operators, scheduler and kubelet do, in one thread: pods from the job's templates, the containers that come
first, then the launcher's command. Images are not run: folders of a pod are folders of the test, ``hvd-elastic`` and
``python`` are ours. Workers are names for this machine, and what a launcher runs there it runs here.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.kube import bodies
from tests.support.kube.resources import Key, resource
from tests.support.kube.server import KubeServer
from tests.support.processes import RUN_MARK, RunningProcess

Body = dict[str, Any]

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = "/opt/hvd/share/hvd-elastic-ext"
LEFT_OUT: Final = ("--discovery", "--discovery-user", "--ssh-port")
"""Options of the launcher about daemon and ssh, which are not there."""
KINDS: Final = {
    "mpijobs": ("mpiReplicaSpecs", "Launcher", "Worker"),
    "trainingjobs": ("etReplicaSpecs", "launcher", "worker"),
}
"""By resource: where the pods of each role are."""
_LOOK_S: Final = 0.1
MPIRUN: Final = ("mpirun", "--allow-run-as-root", "--oversubscribe")


@dataclass(frozen=True)
class _Job:
    """A job as its operator sees it."""

    plural: str
    body: Body

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def slots(self) -> int:
        return int(self.body["spec"].get("slotsPerWorker") or 1)

    @property
    def suspended(self) -> bool:
        return bool((self.body["spec"].get("runPolicy") or {}).get("suspend"))

    @property
    def workers(self) -> int:
        return int(self._role(2).get("replicas", 1))

    @property
    def launcher(self) -> Body:
        return dict(self._role(1)["template"])

    @property
    def worker(self) -> Body:
        return dict(self._role(2)["template"])

    @property
    def ended(self) -> bool:
        status = self.body.get("status") or {}
        true = [each["type"] for each in status.get("conditions") or [] if each["status"] == "True"]
        return not {*true, status.get("phase")}.isdisjoint(("Succeeded", "Failed"))

    def _role(self, number: int) -> Body:
        names = KINDS[self.plural]
        return dict(self.body["spec"][names[0]][names[number]])


@dataclass
class _Life:
    """One launcher's pod."""

    uid: str
    pod: str
    folder: Path
    process: RunningProcess | None = None
    logged: int = 0
    first: list[Body] = field(default_factory=list)
    """Containers that have still to run before the launcher."""
    waiting: subprocess.Popen[bytes] | None = None


class OneMachine:
    """A context manager. ``env``: of all that runs. ``home``: where commands start that are told no folder."""

    def __init__(self, kube: KubeServer, folder: Path, *, env: Mapping[str, str], home: Path) -> None:
        self._kube, self._folder, self._env, self._home = kube, folder, dict(env), home
        self._mark = f"one-machine-{folder}"
        self._lives: dict[str, _Life] = {}
        self._numbers: dict[str, int] = {}
        self._ending = threading.Event()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="kube-one-machine")
        node = bodies.node("here")
        node["status"]["allocatable"] = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
        kube.put("nodes", node)
        kube.execs.place = lambda pod, _, words: self._placed(pod, words)

    def __enter__(self) -> OneMachine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._kube.store.wake()
        self._thread.join()
        for name in list(self._lives):
            self._end(name, hard=True)
        assert not self.errors, self.errors

    def _run(self) -> None:
        changed = self._kube.store.shelf(resource("mpijobs")).changed
        while not self._ending.is_set():
            seen = self._kube.store.revision
            try:
                self._look()
            except Exception as error:  # the test's to see
                self.errors.append(error)
                return
            with self._kube.store.lock:
                if self._kube.store.revision == seen and not self._ending.is_set():
                    changed.wait(_LOOK_S)

    # --- the operator

    def _look(self) -> None:
        jobs = {each.name: each for plural in KINDS for each in (_Job(plural, body) for body in self._kube.all(plural))}
        for name in [*self._lives]:
            if name not in jobs or jobs[name].uid != self._lives[name].uid:
                self._end(name)
        for each in self._kube.all("pods"):
            owner = (each["metadata"].get("ownerReferences") or [{}])[0]
            if owner.get("kind") in ("MPIJob", "TrainingJob") and owner["name"] not in jobs:
                self._kube.remove("pods", each["metadata"]["name"])
        for job in jobs.values():
            if not job.ended:
                self._tend(job)

    def _tend(self, job: _Job) -> None:
        if job.suspended:
            self._end(job.name)
            self._workers(job, 0)
            self._told(job, Suspended=True, Running=False)
            return
        self._workers(job, job.workers)
        if job.name not in self._lives:
            self._begin(job)
        self._go_on(job, self._lives[job.name])

    def _told(self, job: _Job, **conditions: bool) -> None:
        """Change the status of the job, if it is another."""
        status = job.body.get("status") or {}
        if job.plural == "trainingjobs":
            phase = next(name for name, true in conditions.items() if true)
            if status.get("phase") != phase:
                self._kube.change(job.plural, job.name, {"status": {"phase": phase}})
            return
        there = {each["type"]: each for each in status.get("conditions") or []}
        new = {name: bodies.condition(name, true) for name, true in conditions.items()}
        if any((there.get(name) or {}).get("status") != each["status"] for name, each in new.items()):
            self._kube.change(job.plural, job.name, {"status": {"conditions": [*{**there, **new}.values()]}})

    def _workers(self, job: _Job, count: int) -> None:
        wanted = [f"{job.name}-worker-{number}" for number in range(count)]
        labels = bodies.mpi_worker_labels(job.name)
        pods = [each["metadata"] for each in self._kube.all("pods")]
        there = [each["name"] for each in pods if labels.items() <= (each.get("labels") or {}).items()]
        for name in set(there) - {*wanted}:
            self._kube.remove("pods", name)
        for name in set(wanted) - {*there}:
            self._kube.put("pods", _pod(name, job, job.worker, labels, phase="Running"))
        folder = self._folder / job.name
        folder.mkdir(exist_ok=True)
        hosts, lines = folder / "hosts", "".join(f"{each}:{job.slots}\n" for each in wanted)
        if not hosts.exists() or hosts.read_text() != lines:
            fresh = folder / "hosts.new"
            fresh.write_text(lines)
            fresh.replace(hosts)

    # --- the launcher's pod

    def _begin(self, job: _Job) -> None:
        self._numbers[job.name] = self._numbers.get(job.name, 0) + 1
        pod = f"{job.name}-launcher-{self._numbers[job.name]}"
        self._kube.put("pods", _pod(pod, job, job.launcher, {}, phase="Pending"))
        life = _Life(job.uid, pod, self._folder / job.name / pod)
        life.folder.mkdir(parents=True)
        first = job.launcher["spec"].get("initContainers") or []
        life.first = [each for each in first if each.get("restartPolicy") != "Always"]
        self._lives[job.name] = life
        self._mount(life, job.launcher["spec"])

    def _go_on(self, job: _Job, life: _Life) -> None:
        if life.first:
            self._first(life)
        elif life.process is None:
            self._start(job, life)
        else:
            code = life.process.returncode
            if code is not None:
                life.process.wait(30)
            self._log(life, life.process, ended=code is not None)
            if code is not None:
                phase = "Failed" if code else "Succeeded"
                self._kube.logs.end(life.pod)
                self._kube.change("pods", life.pod, {"status": {"phase": phase}})
                self._workers(job, 0)
                self._told(job, **{phase: True, "Running": False})

    def _log(self, life: _Life, process: RunningProcess, *, ended: bool) -> None:
        lines = process.output.splitlines()
        whole = lines if ended else lines[:-1]
        self._kube.logs.write(life.pod, *whole[life.logged :])
        life.logged = max(life.logged, len(whole))

    def _first(self, life: _Life) -> None:
        """Run the next of the containers that come first, to its end."""
        container = life.first[0]
        if life.waiting is None:
            words = [self._moved(life.pod, each) for each in (*container["command"], *container.get("args", []))]
            environment = {**self._environment(), **_variables(container)}
            words = [each.replace("$$", "$") for each in words]
            quiet = subprocess.DEVNULL
            life.waiting = subprocess.Popen(words, env=environment, start_new_session=True, stdin=quiet, stdout=quiet)
            self._say(life, container["name"], {"running": {"startedAt": bodies.SINCE}})
        elif (code := life.waiting.poll()) is not None:
            assert code == 0, f"{container['name']} ended with {code}"
            self._say(life, container["name"], {"terminated": {"exitCode": 0, "reason": "Completed"}})
            life.first.pop(0)
            life.waiting = None

    def _say(self, life: _Life, container: str, state: Body) -> None:
        status = {**bodies.container_status(ready=False, state=state), "name": container}
        self._kube.change("pods", life.pod, {"status": {"initContainerStatuses": [status]}})

    def _mount(self, life: _Life, spec: Body) -> None:
        """Folders of a pod: empty ones, those of claims, files of ConfigMaps."""
        volumes = {each["name"]: each for each in spec.get("volumes") or []}
        for container in (*(spec.get("initContainers") or []), *spec["containers"]):
            for mount in container.get("volumeMounts") or []:
                place, volume = self._place(life.pod, mount["mountPath"]), volumes[mount["name"]]
                if place.exists():
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                if "persistentVolumeClaim" in volume:
                    claim = self.claim(volume["persistentVolumeClaim"]["claimName"])
                    place.symlink_to(claim / mount.get("subPath", ""))
                    continue
                place.mkdir()
                if "configMap" in volume:
                    held = self._kube.get("configmaps", volume["configMap"]["name"])
                    for key, data in (held.get("binaryData") or {}).items():
                        (place / key).write_bytes(base64.b64decode(data))

    def claim(self, name: str) -> Path:
        """The folder of a PersistentVolumeClaim."""
        made = self._folder / "claims" / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def _start(self, job: _Job, life: _Life) -> None:
        container = job.launcher["spec"]["containers"][0]
        hosts = self._folder / job.name
        given = [str(each) for each in (*(container.get("command") or []), *(container.get("args") or []))]
        words = [self._moved(life.pod, each) for each in _ours(given, hosts / "hosts")]
        # As MPI Operator mounts it; for mpirun this machine has one name.
        (hosts / "hostfile").write_text(f"localhost slots={job.workers * job.slots}\n")
        own = {"OMPI_MCA_orte_default_hostfile": str(hosts / "hostfile")}
        where = container.get("workingDir")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words,
            env={**self._environment(), **own, **_variables(container)},
            cwd=self._place(life.pod, where) if where else self._home,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        life.process = RunningProcess(process, mark=self._mark)
        self._kube.logs.start(life.pod)
        ready = [bodies.condition(kind) for kind in ("Ready", "ContainersReady")]
        self._kube.change("pods", life.pod, {"status": {"phase": "Running", "conditions": ready}})
        self._told(job, Running=True, Suspended=False)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._env, RUN_MARK: self._mark}

    def _end(self, name: str, *, hard: bool = False) -> None:
        life = self._lives.pop(name, None)
        if life is None:
            return
        if life.waiting is not None and life.waiting.poll() is None:
            os.killpg(life.waiting.pid, signal.SIGKILL)
            life.waiting.wait()
        if life.process is not None:
            if not hard and life.process.returncode is None:
                life.process.terminate()
                with contextlib.suppress(AssertionError):
                    life.process.wait(60)
            life.process.end()
        self._kube.logs.end(life.pod)
        with contextlib.suppress(KeyError):
            self._kube.remove("pods", life.pod)

    # --- places

    def _placed(self, pod: Key, words: list[str]) -> list[str]:
        return [self._moved(pod.name, each) for each in words]

    def _place(self, pod: str, path: str) -> Path:
        name = re.sub(r"-(launcher|worker)-\d+$", "", pod)
        return self._folder / name / pod / path.lstrip("/")

    def _moved(self, pod: str, word: str) -> str:
        """A word with folders of a pod as those of this machine."""
        word = word.replace(EXAMPLES, str(ROOT))
        body = self._kube.get("pods", pod)["spec"]
        containers = (*body.get("initContainers", []), *body["containers"])
        paths = {mount["mountPath"] for each in containers for mount in each.get("volumeMounts", [])}
        for path in sorted(paths, key=len, reverse=True):
            word = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w-])", str(self._place(pod, path)), word)
        return word


def _pod(pod: str, job: _Job, template: Body, labels: Mapping[str, str], *, phase: str) -> Body:
    metadata = template.get("metadata") or {}
    body = bodies.pod(
        pod,
        node="here",
        phase=phase,
        ready=phase == "Running",
        labels={**(metadata.get("labels") or {}), **labels},
        annotations=metadata.get("annotations"),
        owner=("MPIJob" if job.plural == "mpijobs" else "TrainingJob", job.name, job.uid),
    )
    body["spec"] = {**template["spec"], "nodeName": "here"}
    return body


def _variables(container: Body) -> dict[str, str]:
    return {each["name"]: str(each.get("value", "")).replace("$$", "$") for each in container.get("env") or []}


def _ours(words: list[str], hosts: Path) -> list[str]:
    """A command of an image, with this interpreter; a launcher of ours has its hosts from a file."""
    words = words[2:] if words[:2] == ["tini", "--"] else words
    if words[:2] == ["hvd-elastic", "run"]:
        kept = [each for each in words[2:] if each.partition("=")[0] not in LEFT_OUT]
        own = ["--hosts-file", str(hosts), "--rsh", "local"]
        words = [sys.executable, "-m", "hvd_elastic_ext.cli", "run", *own, *kept]
    if words[0] == "mpirun":
        words = [*MPIRUN, *words[1:]]
    return [sys.executable if each == "python" else each.replace("$$", "$") for each in words]
