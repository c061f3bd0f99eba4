"""What tests leave out of torch in the processes that they start."""

import os
import subprocess
import sys

STEP = """
import sys
import torch
import torch.distributed

parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.5)
parameter.sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
assert parameter.item() == 0.5
assert not any(name.startswith("torch._dynamo.") for name in sys.modules)
assert not hasattr(torch._dynamo, "__wrapped__")
assert torch.randperm(3, generator=torch.Generator().manual_seed(1)).sum() == 3
assert len(list(torch.utils.data.DataLoader([1, 2, 3], shuffle=True))) == 3
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
assert not any(name.startswith("torch._dynamo.") for name in sys.modules)
assert "torch._prims" not in sys.modules
assert not hasattr(torch.export, "__wrapped__")
assert "torch._functorch.eager_transforms" not in sys.modules
"""
TRACE = """
assert torch.vmap(lambda x: x + 1)(torch.ones(2)).tolist() == [2.0, 2.0]
assert torch.func.grad(lambda x: x * x)(torch.tensor(2.0)).item() == 4.0
import torch.nested._internal.nested_tensor as submodule
assert submodule is torch.nested._internal.nested_tensor
assert torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged).is_nested
assert torch.distributions.Normal(0.0, 1.0).mean.item() == 0.0
assert torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),)).item() == 2.0
"""
USE = """
assert torch._dynamo.utils.counters is not None
assert torch._dynamo.trace_rules.lookup is not None
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
assert torch._dynamo.is_compiling() is False
import torch._dynamo.config
assert torch._dynamo.config is sys.modules["torch._dynamo.config"]
assert sys.modules["torch._dynamo"] is torch._dynamo
assert torch._meta_registrations.activate_meta
assert torch.compile(lambda x: x.cumsum(0) + 1, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2.0, 3.0]
assert isinstance(torch.Generator(), torch.Generator)
optimizer.step()
"""


def test_an_optimizer_steps_without_what_traces_and_compiles_which_is_there_for_whoever_uses_it(
    light_torch: None,
) -> None:
    assert "light_torch" in os.environ["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", STEP + TRACE + USE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
