"""Tries what every part promises on Horovod's optimizers for Keras, in a world of one; prints each promise and case."""

import inspect
import os

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", HOROVOD_ELASTIC="1")

import horovod.tensorflow as hvd

from tests.contract.parts import test_parts
from tests.contract.parts.tensorflow_cases import HOROVODS_CASES

hvd.init()
for name, promise in vars(test_parts).items():
    if name.startswith("test_") and list(inspect.signature(promise).parameters) == ["case"]:
        for of, build in HOROVODS_CASES.items():
            made = build(1)
            made.change()
            promise(made)
            print(f"{name} [{of}]")
