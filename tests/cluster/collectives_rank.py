# SPDX-License-Identifier: Apache-2.0
"""Two ranks of torch.distributed over Gloo whose collectives are recorded, for tests/long/collectives_test.py.

usage: collectives_rank.py DIR MODE. Rank 1 leaves out an all_reduce that rank 0 waits in, until DIR/go is there.
MODE hooks: DDP trains first. MODE methods: the same without hooks of process groups, as an older PyTorch; no DDP.
"""
import os
import sys
import time

import holdfast
import torch
import torch.distributed as dist

STEPS = 3
DEADLINE_S = 300


def wait_for(path):
    end = time.monotonic() + DEADLINE_S
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not come within {DEADLINE_S} s")
        time.sleep(0.01)


def train():
    """One bucket of gradients a step, from C++."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(25, 4))
    for step in range(1, STEPS + 1):
        model(torch.ones(2, 25)).sum().backward()
        holdfast.step(step)


def main():
    directory, mode = sys.argv[1:]
    if mode == "methods":
        del torch._C._distributed_c10d.ProcessGroup.register_pre_hook
    holdfast.record_collectives()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if mode == "hooks":
        train()
    pair = dist.new_group([0, 1])
    numbers = torch.ones(1000)
    dist.broadcast(numbers, 0, group=pair)
    if rank == 0:
        dist.send(numbers, 1)
    else:
        dist.recv(numbers, 0)
        wait_for(os.path.join(directory, "go"))
    dist.all_reduce(numbers, group=pair)
    dist.destroy_process_group()  # without it PyTorch itself aborts at its end now and then


if __name__ == "__main__":
    main()
