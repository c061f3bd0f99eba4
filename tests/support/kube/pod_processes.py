"""One pod as processes of this machine: its init containers, the daemon, then its main container.

Images are not used: folders of a pod are folders of the test, and ``hvd-elastic``, ``torchrun`` and ``python`` are
those of this environment.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.kube import agents_here, bodies
from tests.support.kube.server import KubeServer
from tests.support.ports import free_port
from tests.support.processes import RUN_MARK, RunningProcess

Body = dict[str, Any]

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = "/opt/hvd/share/hvd-elastic-ext"
SSH: Final = ("--discovery-user", "--ssh-port")
"""Options of the launcher that are left out: the daemon runs as the same user, and there is no ssh."""
MPIRUN: Final = ("mpirun", "--allow-run-as-root", "--oversubscribe")
AGAIN_S: Final = 1.0
"""Seconds before a container that has ended is started again."""
LEAVES_S: Final = 60.0
"""Seconds for a pod to end after its object is gone. This is longer than a kubelet waits, for slow machines."""


@dataclass
class Machine:
    """What all pods share. ``pods``: a folder with a short name, because sockets are in it. ``hosts``: the folder with
    the files of hosts, for jobs without a daemon beside their launcher. ``home``: the folder for commands without one.
    """

    kube: KubeServer
    pods: Path
    hosts: Path
    claims: Path
    env: Mapping[str, str]
    home: Path
    ports: dict[str, int] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    """The marks of all started processes."""

    def claim(self, name: str) -> Path:
        """Return the folder of a PersistentVolumeClaim, and make it if necessary."""
        made = self.claims / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def port(self, address: str) -> int:
        """Return the port of this machine that replaces a pod's port; the same port for each call with ``address``."""
        if address not in self.ports:
            self.ports[address] = free_port()
        return self.ports[address]


class PodRun:
    """One life of a pod. A worker that waits for ssh is only a name of this machine, and runs no process itself."""

    def __init__(self, machine: Machine, body: Body) -> None:
        metadata, spec = body["metadata"], body["spec"]
        self.name, self.uid = str(metadata["name"]), str(metadata["uid"])
        labels = metadata.get("labels") or {}
        self.job = str(labels.get("hvd-elastic-job") or labels.get("training.kubeflow.org/job-name") or self.name)
        self.owners = {str(each["uid"]) for each in metadata.get("ownerReferences") or ()}
        self.gone_since: float | None = None
        self._machine, self._kube, self._spec = machine, machine.kube, spec
        self._folder = machine.pods / f"{self.name}-{self.uid[:4]}"
        both = spec.get("initContainers") or []
        self._first = [each for each in both if each.get("restartPolicy") != "Always"]
        self._daemon = next((each for each in both if each.get("restartPolicy") == "Always"), None)
        self._container: Body = spec["containers"][0]
        self._waiting: subprocess.Popen[bytes] | None = None
        self._beside: RunningProcess | None = None
        self._main: RunningProcess | None = None
        self._logged, self._restarts, self._again_at = 0, 0, 0.0
        self._ending = self._over = self._named = False
        self._agents: list[int] = []
        """The agents that a launcher has started in this pod; found when the pod has to end."""
        self._mount()

    # --- its life

    @property
    def is_name(self) -> bool:
        """Whether the pod is only a name, because its command only waits for ssh."""
        return str((self._container.get("command") or [""])[0]).endswith("/sshd")

    @property
    def alive(self) -> bool:
        """Whether a process of the pod may still run."""
        first = self._waiting is not None and self._waiting.poll() is None
        main = self._main is not None and self._main.returncode is None
        return first or main or agents_here.run(self._agents)

    def step(self) -> None:
        """Do the next step of the pod's life."""
        if self._ending or self._over:
            return
        if self._first:
            self._run_first()
        elif self.is_name:
            if not self._named:
                self._named = True
                self._tell_running()
        elif not self._daemon_is_up():
            return
        elif self._main is None:
            if time.monotonic() >= self._again_at:
                self._start()
        else:
            self._see(self._main)

    def ask_to_end(self, *, by: float) -> None:
        """End the pod as a kubelet does: ``preStop``, SIGTERM to process 1, then the daemon. ``by``: the end of the
        grace period, in Unix seconds.
        """
        if not self._ending:
            self._ending = True
            if self.is_name:
                self._agents = agents_here.of_pod(self.name, self._machine.marks)
                agents_here.tell(self._agents, deadline=by)
            if self._waiting is not None and self._waiting.poll() is None:
                os.killpg(self._waiting.pid, signal.SIGKILL)
            if self._main is not None and self._main.returncode is None:
                self._main.terminate()
        if self._main is not None:
            self._log(self._main, ended=self._main.returncode is not None)
        if not self.alive:
            self.kill()

    def kill(self) -> None:
        """End all processes of the pod now."""
        agents_here.kill(self._agents)
        if self._waiting is not None and self._waiting.poll() is None:
            os.killpg(self._waiting.pid, signal.SIGKILL)
            self._waiting.wait()
        for process in (self._main, self._beside):
            if process is not None:
                process.end()
        if self._main is not None:
            self._log(self._main, ended=True)
        self._beside = None
        self._kube.logs.end(self.name)

    # --- its containers

    def _run_first(self) -> None:
        """Start the next init container, or see whether it has ended."""
        container = self._first[0]
        if self._waiting is None:
            given = (*container["command"], *container.get("args", []))
            words = [self.moved(each).replace("$$", "$") for each in given]
            quiet = subprocess.DEVNULL
            environment = {**self._environment(f"pod-{self.uid}-first"), **self._variables(container)}
            self._waiting = subprocess.Popen(words, env=environment, start_new_session=True, stdin=quiet, stdout=quiet)
            self._tell_first(container["name"], {"running": {"startedAt": bodies.SINCE}})
        elif (code := self._waiting.poll()) is not None:
            assert code == 0, f"{container['name']} of {self.name} ended with {code}"
            self._tell_first(container["name"], {"terminated": {"exitCode": 0, "reason": "Completed"}})
            self._first.pop(0)
            self._waiting = None

    def _daemon_is_up(self) -> bool:
        """Start the daemon's sidecar with the rights of the pod's account; return whether it has published hosts. The
        main container waits for that.
        """
        if self._daemon is None:
            return True
        given = [self.moved(str(each)) for each in self._daemon.get("args") or []]
        if self._beside is None:
            token = self._kube.access.issue_for("default", self._spec["serviceAccountName"])
            config = self._kube.kubeconfig(self._folder / "kubeconfig", token=token)
            words = [each for each in given if not each.startswith("--admission-probe=")]
            words += ["--admission-probe=none", f"--kubeconfig={config}"]
            self._beside = self._popen("discover", [sys.executable, "-m", "discover.cli", *words], {})
        assert self._beside.returncode is None, self._beside.output
        file = next(each.partition("=")[2] for each in given if each.startswith("--publish-to="))
        return Path(file).exists()

    def _start(self) -> None:
        given = [str(each) for each in (*(self._container.get("command") or []), *(self._container.get("args") or []))]
        words = [self.moved(each) for each in self._ours(given)]
        # MPI Operator mounts such a file. For mpirun, this machine has only one name.
        hostfile = self._machine.hosts / f"{self.job}.hostfile"
        own = {"OMPI_MCA_orte_default_hostfile": str(hostfile)} if hostfile.exists() else {}
        self._main = self._popen("main", words, {**own, **self._variables(self._container)})
        self._kube.logs.start(self.name)
        self._logged = 0
        self._tell_running()

    def _popen(self, what: str, words: list[str], environment: Mapping[str, str]) -> RunningProcess:
        mark = f"pod-{self.uid}-{what}"
        self._machine.marks.add(mark)
        where = self._container.get("workingDir")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words,
            env={**self._environment(mark), **environment},
            cwd=self.place(where) if where else self._machine.home,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        return RunningProcess(process, mark=mark)

    def _see(self, main: RunningProcess) -> None:
        code = main.returncode
        if code is not None:
            main.wait(30)
        self._log(main, ended=code is not None)
        if code is None:
            return
        main.end()  # also ends processes that it has left
        policy = self._spec.get("restartPolicy", "Always")
        if policy == "Always" or (policy == "OnFailure" and code):
            self._main, self._again_at = None, time.monotonic() + AGAIN_S
            self._restarts += 1
            self._tell({"phase": "Running", "containerStatuses": [self._status(code)]})
            return
        self._over = True
        self.kill()
        self._tell({"phase": "Failed" if code else "Succeeded", "containerStatuses": [self._status(code)]})

    def _log(self, process: RunningProcess, *, ended: bool) -> None:
        lines = process.output.splitlines(keepends=True)
        whole = [line.rstrip("\n") for line in lines if ended or line.endswith("\n")]
        self._kube.logs.write(self.name, *whole[self._logged :])
        self._logged = max(self._logged, len(whole))

    # --- its status

    def _tell(self, status: Body) -> None:
        with contextlib.suppress(KeyError):  # the pod's object may be gone
            self._kube.change("pods", self.name, {"status": status})

    def _tell_first(self, container: str, state: Body) -> None:
        status = {**bodies.container_status(ready=False, state=state), "name": container}
        self._tell({"initContainerStatuses": [status]})

    def _tell_running(self) -> None:
        ready = [bodies.condition(kind) for kind in ("Ready", "ContainersReady")]
        address = {"podIP": "127.0.0.1", "hostIP": "127.0.0.1", "startTime": bodies.SINCE}
        self._tell({"phase": "Running", "conditions": ready, "containerStatuses": [self._status(None)], **address})

    def _status(self, code: int | None) -> Body:
        reason = "Error" if code else "Completed"
        state = {"running": {"startedAt": bodies.SINCE}}
        state = state if code is None else {"terminated": {"exitCode": code, "reason": reason}}
        status = bodies.container_status(ready=code is None, state=state)
        return {**status, "name": self._container["name"], "restartCount": self._restarts}

    # --- places and words

    def place(self, path: str) -> Path:
        """Return where a path of the pod is on this machine."""
        return self._folder / path.lstrip("/")

    def _mounts(self) -> Iterator[Body]:
        for container in (*(self._spec.get("initContainers") or []), *self._spec["containers"]):
            yield from container.get("volumeMounts") or []

    def _mount(self) -> None:
        """Make the pod's volumes: empty folders, folders of claims, files of ConfigMaps."""
        self._folder.mkdir(parents=True)
        volumes = {each["name"]: each for each in self._spec.get("volumes") or []}
        for mount in self._mounts():
            place, volume = self.place(mount["mountPath"]), volumes[mount["name"]]
            if place.exists():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if "persistentVolumeClaim" in volume:
                claim = self._machine.claim(volume["persistentVolumeClaim"]["claimName"])
                place.symlink_to(claim / mount.get("subPath", ""))
                continue
            place.mkdir()
            if "configMap" in volume:
                held = self._kube.get("configmaps", volume["configMap"]["name"])
                for key, data in (held.get("binaryData") or {}).items():
                    (place / key).write_bytes(base64.b64decode(data))

    def moved(self, word: str) -> str:
        """Return a word of a command with this machine's folders instead of the pod's."""
        word = word.replace(EXAMPLES, str(ROOT))
        for path in sorted({each["mountPath"] for each in self._mounts()}, key=len, reverse=True):
            word = re.sub(rf"((?<=unix://)|(?<![\w/.-])){re.escape(path)}(?![\w-])", str(self.place(path)), word)
        return word

    def _environment(self, mark: str) -> dict[str, str]:
        return {**os.environ, **self._machine.env, RUN_MARK: mark}

    def _variables(self, container: Body) -> dict[str, str]:
        found = {each["name"]: str(each.get("value", "")).replace("$$", "$") for each in container.get("env") or []}
        if endpoint := found.get("PET_RDZV_ENDPOINT"):
            # All pods have this machine's name, so torchrun needs is_host to know which pod has the rendezvous.
            found["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{self._machine.port(endpoint)}"
            found["PET_RDZV_CONF"] = f"is_host={int(endpoint.rpartition(':')[0] == self.name)}"
        return found

    def _ours(self, words: list[str]) -> list[str]:
        """Return a command of an image with this interpreter. Our launcher starts all workers on this machine."""
        words = words[2:] if words[:2] == ["tini", "--"] else words
        if words[:2] == ["hvd-elastic", "run"]:
            left_out = SSH if self._daemon is not None else (*SSH, "--discovery")
            kept = [each for each in words[2:] if each.partition("=")[0] not in left_out]
            hosts = [] if self._daemon is not None else ["--hosts-file", str(self._machine.hosts / self.job)]
            words = [sys.executable, "-m", "hvd_elastic_ext.cli", "run", *hosts, "--rsh", "local", *kept]
        if words[0] == "torchrun":
            words = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        if words[0] == "mpirun":
            words = [*MPIRUN, *words[1:]]
        return [sys.executable if each == "python" else each.replace("$$", "$") for each in words]
