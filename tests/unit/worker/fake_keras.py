"""A stand-in for Keras 3: its classes, and a backend."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch


class Optimizer:
    """An optimizer that goes the way of its gradients. ``variables``: the number of its steps."""

    def __init__(self) -> None:
        self.built, self.steps = False, Variable(torch.zeros(()))
        self.variables = [self.steps]
        self._trainable_variables: list[Variable] = []

    def build(self, variables: list[Variable]) -> None:
        self.built, self._trainable_variables = True, variables

    def apply(self, grads, trainable_variables=None) -> None:
        for gradient, variable in zip(grads, trainable_variables or self._trainable_variables, strict=True):
            if gradient is not None:
                variable.value.data.sub_(gradient)
        self.steps.value += 1

    @classmethod
    def from_config(cls) -> Optimizer:
        return cls()


class Variable:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Layer(torch.nn.Module):
    """A model of one weight."""

    def __init__(self, *, built: bool = True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.mean = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
        self.built, self.trainable_variables = built, [Variable(self.weight)]

    def compile(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


class Callback:
    pass


def use(patch: pytest.MonkeyPatch, *, version: str = "3.15.1", backend: str = "torch") -> None:
    """Let this process have imported it."""
    module = ModuleType("keras")
    vars(module).update(
        __version__=version, Variable=Variable, config=SimpleNamespace(backend=lambda: backend),
        optimizers=SimpleNamespace(Optimizer=Optimizer), layers=SimpleNamespace(Layer=Layer),
        callbacks=SimpleNamespace(Callback=Callback),
    )  # fmt: skip
    patch.setitem(sys.modules, "keras", module)
