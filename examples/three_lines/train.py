# SPDX-License-Identifier: Apache-2.0
"""The data-parallel script of examples/ddp with Holdfast in the place of its checkpoints: what was changed ends with
"# holdfast". A rank that is killed costs the step it was in and nothing before it: the state is in memory that outlives
the process.

    holdfast run --nproc-per-node 2 examples/three_lines/train.py --steps 60
    torchrun --nproc-per-node 2 examples/three_lines/train.py --steps 60     # the same script; nothing is saved

Rank 0 ends by printing a digest of all parameters: the same whether it was killed on the way or not.
"""
import argparse
import hashlib
import os

import holdfast  # holdfast
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, WIDTH = 256, 32, 64


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
        self.block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.block(self.embedding(tokens), src_mask=mask, is_causal=True))


def digest(model):
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(value.cpu().numpy().tobytes())
    return total.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="taken as by examples/ddp; nothing is put there")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(1)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Under DDP every rank holds the same parameters: one copy goes to the store.
    state = holdfast.replicated({"model": model, "optimizer": optimizer})  # holdfast
    step = holdfast.load(state)  # holdfast
    if step > 0:
        print(f"resumed from step {step}", flush=True)

    loader = DataLoader(Sequences(step, options.steps, rank, world), batch_size=None, num_workers=1)
    for tokens in loader:
        tokens = tokens.to(device)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        holdfast.save(state, step)  # holdfast
        holdfast.step(step, loss=loss)
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        if holdfast.should_stop():
            break
    if rank == 0:
        print(f"digest {digest(model.module)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
