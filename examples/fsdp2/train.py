# SPDX-License-Identifier: Apache-2.0
"""A sharded PyTorch script (FSDP2: fully_shard) that keeps its state by Holdfast. Each rank saves its own shards:
nothing is gathered. What the package `holdfast` needs ends with "# holdfast".

    holdfast run --nproc-per-node 2 examples/fsdp2/train.py --steps 60
    torchrun --nproc-per-node 2 examples/fsdp2/train.py --steps 60     # the same script; nothing is saved

It has dropout, so the random state is saved, too. Rank 0 ends by printing a digest of all parameters, whole: the same
whether it was killed on the way or not.
"""
import argparse
import hashlib
import os

import holdfast  # holdfast
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, WIDTH, LAYERS = 256, 32, 64, 2


class Sequences(Dataset):
    """Tokens as a function of step and rank: a run that resumes sees what it would have seen."""

    def __init__(self, first, last, rank, world):
        self.first, self.last, self.rank, self.world = first, last, rank, world

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed((self.first + index) * self.world + self.rank)
        return torch.randint(0, VOCABULARY, (8, LENGTH + 1), generator=generator)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def sharded(device, world):
    model = Model().to(device)
    mesh = init_device_mesh(device.type, (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def digest(model):
    """Of the whole parameters; all ranks call it."""
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + value.full_tensor().cpu().numpy().tobytes())
    return total.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="taken as by examples/ddp; nothing is put there")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = sharded(device, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1000 + rank)  # from here on: each rank's own dropout
    draws = torch.cuda if gpu else torch

    # DTensors say themselves which part they are. What else an optimizer has, its step counts, is the same everywhere.
    state = {"model": model, "optimizer": holdfast.replicated(optimizer), "random": draws.get_rng_state()}  # holdfast
    step = holdfast.load(state)  # holdfast
    if step > 0:
        draws.set_rng_state(state["random"])  # holdfast
        print(f"resumed from step {step}", flush=True)

    # A loader draws a seed when it begins: from a generator of its own, else a run that resumes had other dropout.
    data = Sequences(step, options.steps, rank, world)
    for tokens in DataLoader(data, batch_size=None, num_workers=1, generator=torch.Generator()):
        tokens = tokens.to(device)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        state["random"] = draws.get_rng_state()  # holdfast
        holdfast.save(state, step)  # holdfast
        holdfast.step(step, loss=loss)
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        if holdfast.should_stop():
            break
    whole = digest(model)
    if rank == 0:
        print("digest", whole, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
