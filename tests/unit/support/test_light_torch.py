"""What tests leave out of torch in the processes that they start."""

import os
import subprocess
import sys

STEP = """
import sys
import torch

parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.5)
parameter.sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
assert parameter.item() == 0.5
assert not any(name.startswith("torch._dynamo.") for name in sys.modules)
assert not hasattr(torch._dynamo, "__wrapped__")
"""
USE = """
assert torch._dynamo.is_compiling() is False
import torch._dynamo.config
assert torch._dynamo.config is sys.modules["torch._dynamo.config"]
assert sys.modules["torch._dynamo"] is torch._dynamo
optimizer.step()
"""


def test_an_optimizer_steps_without_the_compiler_which_is_there_for_whoever_uses_it(light_torch: None) -> None:
    assert "light_torch" in os.environ["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", STEP + USE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
