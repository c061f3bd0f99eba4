"""scripts/setup: makes or updates .venv in the tree, as `setup_plan` decides."""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import build_horovod, guard, prerequisites
from .build_horovod import CONSTRAINTS, PINNED_TENSORFLOW, PINNED_TORCH, TENSORFLOW, make_environment, pip_install
from .errors import ToolingError
from .options import Parser
from .pip_plan import Plan, describe, parse_report
from .processes import clean_environment, raise_on_sigterm, run_logged, say
from .setup_plan import Action, Found, Options, Stamp, decide, hash_inputs, read_stamp
from .wheel_cache import locked

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "hvd-setup.json"
UNFINISHED = ROOT / ".venv.unfinished"
WHEEL_RECORD = VENV / "hvd-horovod-wheel"
LOCK = ROOT / ".venv.lock"
OWN_NAME = "hvd-elastic-ext"
EXTRAS = "dev,torch,mpi,kubernetes,checkpoint,dashboard,tracing,tensorboard"
"""Always with mpi4py: its wheel needs no compiler, and no MPI until it is used."""
TF_KERAS = f"tf-keras=={PINNED_TENSORFLOW}"
"""Keras 2, whose optimizers Horovod wraps. It demands the package `tensorflow`, even where `tensorflow-cpu` is."""
HOROVOD_NEEDS = ("cffi", "cloudpickle", "numpy", "packaging", "psutil", "pyyaml")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line: 0 when .venv is as it should be, or 1 with a message."""
    parsed = parser().parse_args(arguments)
    if os.environ.get("HVD_DIE_WITH_PARENT") == "1":
        guard.die_with_parent(os.getppid())
    raise_on_sigterm()
    try:
        set_up(chosen(parsed, dict(os.environ)))
    except ToolingError as error:
        say(f"setup: {error}")
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("setup: interrupted; run it again to continue")
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = Parser(
        prog="scripts/setup",
        description="Make .venv in this tree with pinned versions of everything, Horovod included.",
        epilog="Options are remembered until they are given again. Nothing outside the tree changes except pip's "
        "cache and ~/.cache/hvd-elastic-ext ($XDG_CACHE_HOME is respected). docs/install.md says more.",
    )
    result.add_argument(
        "--torch-index",
        metavar="URL",
        help="package index to take torch from (or set TORCH_INDEX); `default` returns to pip's own choice",
    )
    mpi = result.add_mutually_exclusive_group()
    mpi.add_argument("--with-mpi", action="store_true", default=None, help="build Horovod with MPI beside Gloo")
    mpi.add_argument("--without-mpi", action="store_false", dest="with_mpi", help="back to Gloo alone (the default)")
    more = result.add_mutually_exclusive_group()
    more.add_argument(
        "--with",
        choices=["tensorflow"],
        dest="with_",
        help="TensorFlow beside PyTorch, and Horovod for both (or set WITH=tensorflow)",
    )
    more.add_argument("--without", choices=["tensorflow"], help="back to PyTorch alone (the default)")
    result.add_argument("--python", metavar="PY", help="the Python to make .venv with (default: python3)")
    return result


def chosen(parsed: argparse.Namespace, environment: dict[str, str]) -> Options:
    """Return the options of a command line; TORCH_INDEX and WITH replace missing ones.

    Raises ToolingError, one line, if WITH names what cannot be added.
    """
    index = parsed.torch_index or environment.get("TORCH_INDEX") or None
    python = parsed.python and (shutil.which(parsed.python) or parsed.python)
    torch_index = "" if index == "default" else index
    return Options(
        torch_index=torch_index, mpi=parsed.with_mpi, tensorflow=_with_tensorflow(parsed, environment), python=python
    )


def _with_tensorflow(parsed: argparse.Namespace, environment: dict[str, str]) -> bool | None:
    if parsed.with_ or parsed.without:
        return parsed.with_ is not None
    named = environment.get("WITH", "")
    if named not in ("", "tensorflow"):
        raise ToolingError(f"WITH is {named!r}; give WITH=tensorflow, or nothing to leave it as it was.")
    return True if named else None


def set_up(options: Options) -> None:
    """Bring .venv into the wanted state, if it is not yet."""
    if _situation(options)[1] is Action.NOTHING:
        return
    wanted, _, _ = _situation(options)
    prerequisites.require(_purpose(wanted.options))
    with locked(LOCK, waiting="Another set-up runs in this tree"):
        wanted, action, reason = _situation(options)
        if action is Action.NOTHING:
            return
        say(f"Setting up {VENV}: {reason}.")
        if action is Action.AFRESH:
            _remove_environment()
        _install(wanted)
        say(complete())
        for hint in prerequisites.hints():
            say(hint)


def complete() -> str:
    """Return the last line of a set-up: where the command is, and what to do next."""
    command = PYTHON.parent / "hvd-elastic"
    return f"Set-up is complete: the command is {command}. Next: {command} doctor, or make demo."


def _situation(options: Options) -> tuple[Stamp, Action, str]:
    stamp = read_stamp(STAMP.read_text()) if STAMP.exists() else None
    settled = options.over(stamp.options if stamp else Options())
    wanted = Stamp(root=str(ROOT), inputs=hash_inputs(_inputs()), options=settled)
    found = Found(environment=PYTHON.exists(), unfinished=UNFINISHED.exists(), stamp=stamp)
    return wanted, *decide(found, wanted)


def _inputs() -> dict[str, bytes]:
    files = [CONSTRAINTS, ROOT / "setup.py", ROOT / "pyproject.toml", *Path(__file__).parent.glob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in files}


def _purpose(options: Options) -> prerequisites.Purpose:
    return prerequisites.Purpose(python=options.python or sys.executable, mpi=bool(options.mpi))


def _remove_environment() -> None:
    if not VENV.exists() and not VENV.is_symlink():
        return
    if VENV.is_symlink() or (any(VENV.iterdir()) and not (VENV / "pyvenv.cfg").exists() and not UNFINISHED.exists()):
        raise ToolingError(f"{VENV} exists but is not a virtual environment; move it away and run this again.")
    say(f"Removing the old {VENV}.")
    shutil.rmtree(VENV)


def _install(wanted: Stamp) -> None:
    """Do every step; what is interrupted while writing is marked so, what merely failed is kept for the next try."""
    STAMP.unlink(missing_ok=True)
    options = wanted.options
    with _writing():
        _make_environment(options)
    steps = _requirements(options)
    planned = [package for requirements in steps for package in _dry_run(requirements).packages]
    say(describe(Plan(tuple(planned)), own=OWN_NAME))
    with _writing():
        for requirements in steps:
            pip_install(VENV, requirements, label="Installing packages")
    request = build_horovod.Request(python=str(PYTHON), mpi=bool(options.mpi), with_tensorflow=bool(options.tensorflow))
    wheel = build_horovod.ensure_wheel(request)
    with _writing():
        _install_wheel(wheel)
    _prove_it_works(options)
    _write_stamp(wanted)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    UNFINISHED.touch()
    yield
    UNFINISHED.unlink()


def _make_environment(options: Options) -> None:
    if (VENV / "pyvenv.cfg").exists():
        pip_install(VENV, ["-c", str(CONSTRAINTS), *build_horovod.BUILD_REQUIREMENTS], label="Checking pip")
        return
    python = options.python or sys.executable
    say(f"Making .venv with {python}; downloading pip, setuptools, wheel and packaging (3 MB).")
    make_environment(VENV, python, log=ROOT / ".venv.log")


def _requirements(options: Options) -> list[list[str]]:
    """Return pip's arguments, for one call after the other."""
    torch, index = f"torch=={PINNED_TORCH}", options.torch_index
    if index:
        torch = f"torch=={_version_on(index)}"
    chosen_index = ["--extra-index-url", index] if index else []
    tensorflow = [f"{TENSORFLOW}=={PINNED_TENSORFLOW}"] if options.tensorflow else []
    usual = [
        *("-c", str(CONSTRAINTS), "--no-build-isolation", "--upgrade-strategy", "only-if-needed"),
        *chosen_index,
        *(torch, *tensorflow, *HOROVOD_NEEDS, "-e", f"{ROOT}[{EXTRAS}]"),
    ]
    return [usual, ["-c", str(CONSTRAINTS), "--no-deps", TF_KERAS]] if options.tensorflow else [usual]


def _version_on(index: str) -> str:
    """Return torch's full version on an index, so that no other index's build replaces it."""
    plan = _dry_run(["--ignore-installed", "--no-deps", "--index-url", index, f"torch=={PINNED_TORCH}"])
    version = plan.version_of("torch")
    if version is None:
        raise ToolingError(f"{index} offers no torch {PINNED_TORCH} for this Python and machine.")
    return version


def _dry_run(requirements: list[str]) -> Plan:
    with tempfile.TemporaryDirectory(prefix="hvd-plan-") as directory:
        report = Path(directory) / "report.json"
        run_logged(
            [str(PYTHON), "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report), *requirements],
            label="Asking pip what it would download",
            log=VENV / "pip-plan.log",
            environment=clean_environment(os.environ),
            cwd=ROOT,
        )
        return parse_report(report.read_text())


def _install_wheel(wheel: Path) -> None:
    """Install Horovod, unless this build of it is installed."""
    if WHEEL_RECORD.exists() and WHEEL_RECORD.read_text() == str(wheel) and _has_horovod():
        return
    WHEEL_RECORD.unlink(missing_ok=True)
    pip_install(VENV, ["--no-deps", "--no-index", "--force-reinstall", str(wheel)], label="Installing Horovod")
    WHEEL_RECORD.write_text(str(wheel))


def _has_horovod() -> bool:
    return build_horovod.installed_version(str(PYTHON), "horovod") is not None


def _prove_it_works(options: Options) -> None:
    for name in ("torch", "tensorflow") if options.tensorflow else ("torch",):
        code = f"import numpy, horovod.{name} as hvd, hvd_elastic_ext; hvd.gloo_built() or exit('Horovod lacks Gloo')"
        run_logged(
            [str(PYTHON), "-c", code],
            label=f"Importing Horovod and {name}",
            log=VENV / "import.log",
            environment=clean_environment(os.environ),
            cwd=ROOT,
        )


def _write_stamp(stamp: Stamp) -> None:
    draft = STAMP.with_suffix(".tmp")
    draft.write_text(stamp.to_text())
    draft.replace(STAMP)


if __name__ == "__main__":
    sys.exit(main())
