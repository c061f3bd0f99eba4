"""scripts/build-horovod: one wheel of Horovod for one Python, torch and TensorFlow, built once and cached."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import prerequisites
from .errors import ToolingError
from .horovod_source import HOROVOD_VERSION, SDIST_SHA256, unpack, verify
from .interpreter import Interpreter, add_to_path, examine
from .options import Parser
from .processes import clean_environment, raise_on_sigterm, run_logged, say
from .wheel_cache import WheelCache, cache_directory, locked
from .wheel_key import WheelFacts, build_flags, facts_of_this_machine

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PINNED_TORCH = "2.13.0"
PINNED_TENSORFLOW = "2.21.0"
TENSORFLOW = "tensorflow-cpu" if platform.machine() == "x86_64" else "tensorflow"
"""Its package without code for CUDA. For other processors than these, that is the usual one."""
BUILD_REQUIREMENTS = ("pip", "setuptools", "wheel", "packaging")
MEMORY_PER_COMPILER = 2 * 1024**3
"""Bytes. A translation unit with torch's headers takes up to 1.5 GB."""


@dataclass(frozen=True)
class Request:
    """Which wheel is wanted: for torch, for TensorFlow, or for both."""

    python: str
    mpi: bool = False
    cuda: bool = False
    with_torch: bool = True
    torch: str | None = None
    """A version. None takes the torch of `python`, else the pinned version."""
    torch_index: str | None = None
    with_tensorflow: bool = False
    tensorflow: str | None = None
    """As ``torch``."""


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line: 0 with the wheel's path as the last line of stdout, or 1 with a message."""
    raise_on_sigterm()
    options = parser().parse_args(arguments)
    try:
        wheel = ensure_wheel(asked(options))
        if options.out is not None:
            wheel = copy_to(wheel, invoked_from() / options.out)
    except ToolingError as error:
        say(f"build-horovod: {error}")
        return 1
    except KeyboardInterrupt:
        say("build-horovod: interrupted; nothing incomplete was kept")
        return 130
    print(wheel)
    return 0


def asked(options: argparse.Namespace) -> Request:
    """Return the request of a command line. Raises ToolingError, one line, for frameworks that do not go together."""
    with_tensorflow = options.with_ is not None or options.tensorflow is not None
    if options.without is not None and options.torch is not None:
        raise ToolingError(f"--torch {options.torch} and --without torch contradict each other; leave one out.")
    if options.without is not None and not with_tensorflow:
        raise ToolingError("--without torch leaves nothing to build for; give --with tensorflow, too.")
    return Request(
        python=_program(options.python) if options.python else sys.executable,
        mpi=options.with_mpi,
        cuda=options.cuda,
        with_torch=options.without is None,
        torch=options.torch,
        torch_index=options.torch_index or os.environ.get("TORCH_INDEX") or None,
        with_tensorflow=with_tensorflow,
        tensorflow=options.tensorflow,
    )


def invoked_from() -> Path:
    """The folder in which the command was given: relative paths start there."""
    return Path(os.environ.get("INVOKED_FROM", "."))


def _program(name: str) -> str:
    """A name to look for on PATH stays; a path is made to work in any folder."""
    return str(invoked_from() / name) if "/" in name else name


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = Parser(
        prog=os.environ.get("INVOKED_AS", "scripts/build-horovod"),
        description=f"Build a wheel of Horovod {HOROVOD_VERSION} with Gloo, for PyTorch, TensorFlow or both, once, and "
        "print its path.",
        epilog="The wheel is kept under $XDG_CACHE_HOME/hvd-elastic-ext (or ~/.cache/hvd-elastic-ext). "
        "Nothing is installed into PYTHON. Horovod needs numpy at run time and does not declare it: install it too.",
    )
    result.add_argument("--python", metavar="PY", help="the Python the wheel is for (default: python3)")
    result.add_argument("--with", choices=["tensorflow"], dest="with_", help="for TensorFlow beside PyTorch")
    result.add_argument("--without", choices=["torch"], help="not for PyTorch: for TensorFlow alone")
    result.add_argument(
        "--torch",
        metavar="VERSION",
        help=f"the torch to build against (default: the one PY has, else {PINNED_TORCH}); "
        "if PY has another or none, VERSION is installed into a temporary environment for the build",
    )
    result.add_argument(
        "--torch-index", metavar="URL", help="package index to take that torch from (or set TORCH_INDEX)"
    )
    result.add_argument(
        "--tensorflow",
        metavar="VERSION",
        help=f"the TensorFlow to build against, likewise (default: the one PY has, else {PINNED_TENSORFLOW}); "
        "means --with tensorflow",
    )
    result.add_argument("--with-mpi", action="store_true", help="MPI beside Gloo")
    result.add_argument("--cuda", action="store_true", help="NCCL for GPU tensors; needs nvcc and NCCL's headers")
    result.add_argument("--out", metavar="DIR", help="copy the wheel to DIR and print that path instead")
    return result


def copy_to(wheel: Path, directory: Path) -> Path:
    """Copy a wheel into a directory and return the copy's path."""
    directory.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(wheel, directory)).resolve()


def ensure_wheel(request: Request) -> Path:
    """Return the path of a wheel that fits the request, from the cache or newly built."""
    WheelCache(cache_directory(os.environ)).sweep()
    prerequisites.require(prerequisites.Purpose(python=request.python, mpi=request.mpi, cuda=request.cuda))
    interpreter = examine(request.python)
    added = to_add(interpreter, request)
    return _wheel_with(added, interpreter, request) if added else _wheel_for(interpreter, request)


def fits(installed: str | None, wanted: str | None) -> bool:
    """Whether an installed framework is the wanted one; without a local tag in `wanted` any build fits."""
    if installed is None or wanted is None:
        return installed is not None
    return installed == wanted or ("+" not in wanted and installed.split("+")[0] == wanted)


def to_add(interpreter: Interpreter, request: Request) -> list[str]:
    """Return what pip must install for the build: frameworks that the Python does not have, or in another version."""
    torch, tensorflow = [], []
    if request.with_torch and not fits(interpreter.torch, request.torch):
        torch = [f"torch=={request.torch or PINNED_TORCH}"]
    if request.with_tensorflow and not fits(interpreter.tensorflow, request.tensorflow):
        tensorflow = [f"{TENSORFLOW}=={request.tensorflow or PINNED_TENSORFLOW}"]
    # A TensorFlow that the Python has is used with the numpy that it has there: many work with no other.
    numpy = ["numpy"] if tensorflow or not request.with_tensorflow else []
    return [*torch, *tensorflow, *numpy] if torch or tensorflow else []


def had(interpreter: Interpreter, request: Request) -> str:
    """Return in words what the Python has of the frameworks that are asked for, and then what it has not."""
    asked_for = {"torch": interpreter.torch} if request.with_torch else {}
    asked_for |= {"TensorFlow": interpreter.tensorflow} if request.with_tensorflow else {}
    there = [f"{name} {version}" for name, version in asked_for.items() if version]
    return in_words([*there, *(f"no {name}" for name, version in asked_for.items() if not version)])


def _wheel_with(added: list[str], interpreter: Interpreter, request: Request) -> Path:
    names = in_words([each.replace("==", " ") for each in added])
    say(f"{interpreter.path} has {had(interpreter, request)}.")
    say(f"Downloading {names} into a temporary environment; {interpreter.path} stays as it is.")
    # Not in /tmp, which may be small, or in memory: torch with CUDA takes 8 GB.
    with WheelCache(cache_directory(os.environ)).work_folder("frameworks") as directory:
        environment = directory / "venv"
        make_environment(environment, interpreter.path, log=directory / "venv.log")
        index = ["--extra-index-url", request.torch_index] if request.torch_index else []
        pinned = {f"torch=={PINNED_TORCH}", f"{TENSORFLOW}=={PINNED_TENSORFLOW}", "numpy"}
        constraints = ["-c", str(CONSTRAINTS)] if pinned.issuperset(added) else []
        pip_install(environment, [*constraints, *index, *added], label=f"Installing {names}")
        add_to_path(environment, interpreter.site)  # a framework that is not added is there
        return _wheel_for(examine(str(environment / "bin/python")), request)


def _wheel_for(interpreter: Interpreter, request: Request) -> Path:
    cache = WheelCache(cache_directory(os.environ))
    facts = facts_of_this_machine(
        torch=interpreter.torch if request.with_torch else None,
        tensorflow=interpreter.tensorflow if request.with_tensorflow else None,
        python_tag=interpreter.tag,
        mpi=request.mpi,
        cuda=request.cuda,
    )
    settled = replace(request, python=interpreter.path)
    if found := cache.find(facts):
        say(f"Horovod {HOROVOD_VERSION} for {built_for(facts)}: built before, {found}")
        return found
    if why := cache.why_not(facts):
        say(f"The cache has a wheel for {built_for(facts)}, but of other facts, so it is built again: {why}.")
    return cache.get_or_build(facts, lambda work: _build(work, interpreter, settled, facts=facts, log=cache.log(facts)))


def built_for(facts: WheelFacts) -> str:
    """Return the frameworks of a wheel, in words."""
    named = {"torch": facts.torch, "TensorFlow": facts.tensorflow}
    return in_words([f"{name} {version}" for name, version in named.items() if version is not None])


def in_words(names: Sequence[str]) -> str:
    """Return a list as in a sentence: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _build(work: Path, interpreter: Interpreter, request: Request, *, facts: WheelFacts, log: Path) -> Path:
    jobs = parallel_jobs(len(os.sched_getaffinity(0)), _available_memory())
    say(f"Building Horovod {HOROVOD_VERSION} for {built_for(facts)} with {jobs} parallel compilers.")
    minutes = "4 to 25" if request.with_tensorflow else "2 to 8"
    say(f"This takes {minutes} minutes on two cores, half of them in the last files, and happens once.")
    venv = work / "venv"
    make_environment(venv, interpreter.path, log=work / "venv.log")
    source = unpack(_sdist(venv), work)
    add_to_path(venv, interpreter.site)
    wheels = work / "wheel"
    code = "import sys; from setuptools.build_meta import __legacy__ as backend; backend.build_wheel(sys.argv[1])"
    run_logged(
        [str(venv / "bin/python"), "-c", code, str(wheels)],
        label=f"Building Horovod {HOROVOD_VERSION}",
        log=log,
        environment=build_environment(dict(os.environ), venv=venv, request=request, jobs=jobs),
        cwd=source,
    )
    return next(wheels.glob("*.whl"))


def build_environment(environment: dict[str, str], *, venv: Path, request: Request, jobs: int) -> dict[str, str]:
    """Return the environment of the build: of the user's, only what the wheel's key contains."""
    base = {name: environment[name] for name in ("HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH") if name in environment}
    switches = {
        "HOROVOD_WITH_PYTORCH" if request.with_torch else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW" if request.with_tensorflow else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if request.mpi else "HOROVOD_WITHOUT_MPI": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the older ones that Gloo and flatbuffers ask for
    }
    if request.cuda:
        switches["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    path = f"{venv / 'bin'}:{environment.get('PATH', os.defpath)}"
    return {**base, **dict(build_flags(environment)), **switches, "PATH": path, "MAKEFLAGS": f"-j{jobs}"}


def parallel_jobs(cores: int, memory: int) -> int:
    """Return how many compilers may run at once, for cores and bytes of available memory."""
    return max(1, min(cores, memory // MEMORY_PER_COMPILER))


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return MEMORY_PER_COMPILER


def _sdist(venv: Path) -> Path:
    """Return the path of the verified source distribution, downloading it if the cache lacks it."""
    place = cache_directory(os.environ) / "sdist" / f"horovod-{HOROVOD_VERSION}.tar.gz"
    with locked(place.with_suffix(".lock"), waiting="Another process is downloading Horovod's source"):
        if not place.exists():
            _download_sdist(venv, place)
    verify(place)
    return place


def _download_sdist(venv: Path, place: Path) -> None:
    say(f"Downloading the source of Horovod {HOROVOD_VERSION} (3.5 MB).")
    with WheelCache(cache_directory(os.environ)).work_folder("sdist") as directory:
        requirement = directory / "requirement.txt"
        requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n")
        # pip runs the setup.py of the download to learn its name, so `venv` has the build requirements.
        _pip(
            venv,
            [
                *("download", "--no-deps", "--no-binary", "horovod", "--no-build-isolation", "--require-hashes"),
                *("-d", str(directory), "-r", str(requirement)),
            ],
            label="Downloading Horovod's source",
        )
        (directory / place.name).replace(place)


def make_environment(place: Path, python: str, *, log: Path) -> None:
    """Make a virtual environment with the pinned build tools in it."""
    run_logged(
        [python, "-m", "venv", "--clear", str(place)],
        label="Making a virtual environment",
        log=log,
        environment=clean_environment(os.environ),
    )
    pip_install(place, ["-c", str(CONSTRAINTS), *BUILD_REQUIREMENTS], label="Installing pip, setuptools and wheel")


def pip_install(venv: Path, arguments: list[str], *, label: str) -> None:
    """Install into a virtual environment, showing progress."""
    _pip(venv, ["install", *arguments], label=label)


def _pip(venv: Path, arguments: list[str], *, label: str) -> None:
    run_logged(
        [str(venv / "bin/python"), "-m", "pip", *arguments],
        label=label,
        log=venv / "pip.log",
        environment=clean_environment(os.environ),
    )


def installed_version(python: str, package: str) -> str | None:
    """Return the version of a package in an environment, None if it is not there."""
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    done = subprocess.run([python, "-I", "-c", code, package], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
