"""A folder for ``PYTHONPATH``: torch without its compiler, in the processes that tests start."""

from pathlib import Path
from typing import Final

FOLDER: Final = str(Path(__file__).parent)
