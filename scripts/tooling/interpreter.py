"""Asks a Python for its version, its torch and its TensorFlow, without importing either."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolingError
from .processes import clean_environment, output_of

# Runs in that Python. It reads torch/version.py, since importing torch takes seconds. TensorFlow comes in packages of
# several names; of two on the path, Python imports the earlier one.
_QUESTION = """
import importlib.metadata, json, re, sys, sysconfig
from pathlib import Path
try:
    found = importlib.metadata.distribution("torch")
    file = Path(found.locate_file("torch/version.py"))
    text = file.read_text() if file.exists() else ""
    exact = re.search(r"^__version__\\s*(?::\\s*str)?\\s*=\\s*['\\"]([^'\\"]+)", text, re.M)
    torch = exact[1] if exact else found.version
except importlib.metadata.PackageNotFoundError:
    torch = None
names = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")
tensorflow = next((found.version for folder in sys.path for name in names
    for found in importlib.metadata.distributions(name=name, path=[folder])), None)
tag = sysconfig.get_config_var("SOABI") or "%s-%d%d" % (sys.implementation.name, *sys.version_info[:2])
paths = sysconfig.get_paths()
site = [folder for folder in sys.path if folder.endswith("-packages")] + [paths["purelib"], paths["platlib"]]
print(json.dumps({"version": list(sys.version_info[:3]), "tag": tag, "torch": torch, "tensorflow": tensorflow,
    "site": list(dict.fromkeys(site))}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python's description of itself."""

    path: str
    version: tuple[int, ...]
    tag: str
    torch: str | None
    """Full version of the torch it would import, None if it has none."""
    tensorflow: str | None
    """Version of the TensorFlow it would import, None if it has none."""
    site: tuple[str, ...]
    """Directories its packages are in, in the order in which it looks there."""


def examine(python: str) -> Interpreter:
    """Ask a Python. Raises ToolingError if it does not run or is older than 3.10."""
    try:
        # Not -I: the user site may have the user's torch.
        answer = json.loads(output_of([python, "-c", _QUESTION], environment=clean_environment(os.environ)))
    except (ToolingError, ValueError) as error:
        raise ToolingError(f"{python} does not run as a Python interpreter: {error}") from error
    version = tuple(answer["version"])
    if version < (3, 10):
        raise ToolingError(f"{python} is Python {'.'.join(map(str, version))}; 3.10 or newer is needed.")
    return Interpreter(python, version, answer["tag"], answer["torch"], answer["tensorflow"], tuple(answer["site"]))


def add_to_path(environment: Path, directories: tuple[str, ...]) -> None:
    """Add package directories to a virtual environment, after its own."""
    for site in environment.glob("lib/python3*/site-packages"):
        (site / "borrowed.pth").write_text("".join(f"{directory}\n" for directory in directories))
