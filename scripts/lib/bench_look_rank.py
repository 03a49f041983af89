# SPDX-License-Identifier: Apache-2.0
"""A PyTorch script that knows nothing of Holdfast, for scripts/bench pytorch: the child of its DataLoader reads a FIFO
to which nobody writes, at sample HANG_AT of rank 0. bench_look.py measures how soon it is named.

usage: bench_look_rank.py FIFO MARK HANG_AT. MARK gets "monotonic pid" just before the read.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FIFO, MARK, HANG_AT = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Samples(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 2 * HANG_AT

    def __getitem__(self, index):
        if self.rank == 0 and index == HANG_AT:
            return self.read_shard()
        return torch.full((64, 64), float(index))

    def read_shard(self):
        with open(FIFO, "rb", buffering=0) as shard:
            with open(MARK + ".new", "w", encoding="ascii") as mark:
                mark.write(f"{time.monotonic()} {os.getpid()}")
            os.rename(MARK + ".new", MARK)
            return torch.frombuffer(bytearray(shard.read(16384)), dtype=torch.float32)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for sample in DataLoader(Samples(dist.get_rank()), batch_size=None, num_workers=1):
        loss = model(sample).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
