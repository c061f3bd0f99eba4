"""A folder for ``PYTHONPATH``: processes of tests import torch without its compiler."""

from pathlib import Path
from typing import Final

FOLDER: Final = str(Path(__file__).parent)
