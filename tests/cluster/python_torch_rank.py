# SPDX-License-Identifier: Apache-2.0
"""An FSDP2 rank on the CPU over the package `holdfast`, for tests/long/python_torch_test.py.

usage: python_torch_rank.py DIR STEPS. Appends to DIR/rank<r> what it started from and a line for each step; at the end
a digest of all parameters and moments, whole: the same for every number of ranks that has trained nothing since.
"""
import hashlib
import json
import os
import sys

import holdfast
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(world):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3))
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def digest(model, optimizer):
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + whole(value).numpy().tobytes())
    for index, moments in sorted(optimizer.state_dict()["state"].items()):
        for name in ("exp_avg", "exp_avg_sq", "step"):
            total.update(f"{index}{name}".encode() + whole(moments[name]).numpy().tobytes())
    return total.hexdigest()


def main():
    directory, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = build(world)
    # The counters of AdamW are plain tensors and the same everywhere.
    state = {"model": model, "optimizer": holdfast.replicated(optimizer), "seen": 0}
    with open(os.path.join(directory, f"rank{rank}"), "a", encoding="utf-8") as log:
        def note(**fields):
            log.write(json.dumps({"attempt": holdfast.attempt(), "world": world, **fields}) + "\n")
            log.flush()
        step = holdfast.load(state)
        note(start=step, restore=os.environ["HOLDFAST_RESTORE"], seen=state["seen"])
        while step < steps:
            step += 1
            generator = torch.Generator().manual_seed(step * world + rank)
            optimizer.zero_grad()
            model(torch.randn(4, 10, generator=generator)).square().mean().backward()
            optimizer.step()
            state["seen"] += 4
            holdfast.save(state, step, samples=4 * world * step, persist=True if step == steps else None)
            holdfast.step(step, samples=4 * world * step)
            note(step=step)
        note(end=step, digest=digest(model, optimizer), seen=state["seen"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
