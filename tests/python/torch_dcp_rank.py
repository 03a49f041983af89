# SPDX-License-Identifier: Apache-2.0
"""An FSDP2 rank on the CPU that saves and loads over holdfast.dcp, for tests/long/dcp_test.py.

usage: torch_dcp_rank.py RENDEZVOUS RANK WORLD CHECKPOINT VERB. Prints one JSON object: digests of the whole state, the
same for every number of ranks, or what a call failed with.
"""
import hashlib
import json
import os
import signal
import sys

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
sys.path[:0] = [os.path.join(SOURCE, "client", "python")]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import holdfast.dcp  # noqa: E402

DEADLINE_S = 120


def build(world, seed):
    torch.manual_seed(seed)
    # 7 and 3 rows: parts of different sizes, and on three ranks one without any.
    model = torch.nn.Sequential(torch.nn.Linear(1000, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3),
                                torch.nn.Linear(3, 2))
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 1000, generator=generator)).square().mean().backward()
        optimizer.step()


def state_of(model, optimizer, step):
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments, "step": step, "plain": torch.full((5,), float(step)),
            "notes": {"seen": [step, "x"]}}


def digest(value, total=None, path=""):
    """SHA-256 over all of a state, DTensors whole."""
    outermost, total = total is None, total or hashlib.sha256()
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            digest(value[key], total, f"{path}/{key}")
    elif isinstance(value, torch.Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        total.update(f"{path}:{whole.dtype}{tuple(whole.shape)}".encode())
        total.update(bytes(whole.detach().contiguous().flatten().view(torch.uint8).tolist()))
    else:
        total.update(f"{path}={value!r}".encode())
    return total.hexdigest() if outermost else ""


def save(checkpoint, world):
    model, optimizer = build(world, 1)
    train(model, optimizer, 3)
    state = state_of(model, optimizer, 3)
    dcp.save(state, storage_writer=holdfast.dcp.StorageWriter(checkpoint))
    return {"digest": digest(state)}


def async_save(checkpoint, world):
    model, optimizer = build(world, 1)
    train(model, optimizer, 5)
    state = state_of(model, optimizer, 5)
    before = digest(state)
    future = dcp.async_save(state, storage_writer=holdfast.dcp.StorageWriter(checkpoint))
    with torch.no_grad():  # the next step, while it is being saved
        for parameter in model.parameters():
            parameter.zero_()
    future.result(timeout=DEADLINE_S)
    return {"digest": before}


def load(checkpoint, world):
    model, optimizer = build(world, 2)
    state = state_of(model, optimizer, 0)
    try:
        dcp.load(state, storage_reader=holdfast.dcp.StorageReader(checkpoint))
    except dcp.CheckpointException as error:
        return {"failed": sorted(f"{type(e).__name__}: {e}" for e, _ in error.failures.values())}
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    # What went through the model and the optimizer, not what was loaded.
    return {"digest": digest(state_of(model, optimizer, state["step"])), "notes": state["notes"],
            "plain": state["plain"].tolist()}


def killed_save(checkpoint, world):
    """The last rank dies while it writes, after its first bytes."""
    model, optimizer = build(world, 3)
    train(model, optimizer, 1)
    state = state_of(model, optimizer, 1)
    if dist.get_rank() == world - 1:
        real = os.pwrite

        def pwrite(*arguments):
            real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        os.pwrite = pwrite
    dcp.save(state, storage_writer=holdfast.dcp.StorageWriter(checkpoint))
    return {"digest": digest(state)}


def main():
    rendezvous, rank, world, checkpoint, verb = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(world))
    verbs = {"save": save, "async_save": async_save, "load": load, "killed_save": killed_save}
    print(json.dumps(verbs[verb](checkpoint, int(world))), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
