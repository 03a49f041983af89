# SPDX-License-Identifier: Apache-2.0
"""A rank of scripts/bench pytorch, under `holdfast run`: `stall` saves one state by holdfast.save and by
torch.distributed.checkpoint in turns, `marks` trains examples/three_lines' model and times the marks that it makes.

What it measured goes to DIRECTORY/rank<r>.json; bench_package.py makes lines of it.
"""
import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import time

import holdfast
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.nn.parallel import DistributedDataParallel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HIDDEN, FFN = 1024, 2816  # of the layers that the state is made of
WRITE_LIMIT_S = 120
POLL_S = 0.1
WARM_UP_STEPS = 10
CLOCK_LOOPS = 10_000


def make_state(size):
    """Parameters and two moments of layers of a Llama, of `size` bytes or one layer more."""
    shapes = {"wq": (HIDDEN, HIDDEN), "wk": (HIDDEN // 4, HIDDEN), "wv": (HIDDEN // 4, HIDDEN),
              "wo": (HIDDEN, HIDDEN), "w1": (FFN, HIDDEN), "w2": (HIDDEN, FFN), "w3": (FFN, HIDDEN), "norm": (HIDDEN,)}
    state, made, layer = {}, 0, 0
    while made < size:
        for name, shape in shapes.items():
            for part in ("weight", "exp_avg", "exp_avg_sq"):
                tensor = torch.randn(shape)
                state[f"layers.{layer}.{name}.{part}"] = tensor
                made += tensor.numel() * tensor.element_size()
        layer += 1
    return state, made


def train(state):
    """Changes every tensor, as an optimizer's step does."""
    for tensor in state.values():
        tensor.mul_(0.999).add_(1e-4)


def timed(call):
    """(seconds, what it gave) of a call that all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def wait_committed(store, step):
    """Until the checkpoint of `step` is durable: nothing of it is written any more while a peer's turn is on."""
    deadline = time.monotonic() + WRITE_LIMIT_S
    program = os.environ.get("HOLDFAST_CKPT") or "holdfast-ckpt"
    while True:
        done = subprocess.run([program, "ls", "--json", store], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=WRITE_LIMIT_S, check=False)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if any(int(row["step"]) == step and row["committed"] for row in rows):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"checkpoint of step {step} in {store} was not committed within {WRITE_LIMIT_S} s: "
                               f"{done.stdout}{done.stderr}")
        time.sleep(POLL_S)


class Stall:
    """Seconds that the training thread is kept, by who saves."""

    def __init__(self, options):
        self._directory, self._store = options.directory, options.store
        self._state, self.bytes = make_state(options.bytes)
        self._room = torch.zeros(self.bytes // 4)  # touched: the copy below is of memory that is there
        # Kept, it has the memory of its copies from the second save on. async_save makes one for each save by itself.
        self._stager = DefaultStager(StagingOptions(False, False, False, False))

    def _copy(self):
        at = 0
        for tensor in self._state.values():
            self._room[at:at + tensor.numel()].copy_(tensor.view(-1))
            at += tensor.numel()

    def _holdfast(self, step):
        seconds, taken = timed(lambda: holdfast.save(self._state, step, persist=True))
        if not taken:
            raise RuntimeError(f"holdfast.save took no snapshot of step {step}")
        if dist.get_rank() == 0:
            wait_committed(self._store, step)
        holdfast.step(step)
        return seconds

    def _dcp(self, step, **how):
        path = os.path.join(self._directory, "dcp", str(step))
        seconds, future = timed(lambda: dcp.async_save(self._state, checkpoint_id=path, **how))
        future.result(WRITE_LIMIT_S)
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(path)
        return seconds

    def turns(self, count):
        """[{who: seconds}]"""
        rows = []
        for turn in range(1, count + 1):
            train(self._state)
            row = {"holdfast": self._holdfast(turn), "memcpy": timed(self._copy)[0],
                   "dcp.async_save": self._dcp(turn),
                   "dcp.async_save(stager kept)": self._dcp(turn, async_stager=self._stager)}
            rows.append(row)
        return rows


def stall(options):
    measured = Stall(options)
    return {"bytes": measured.bytes, "turns": measured.turns(options.count)}


def three_lines():
    path = os.path.join(ROOT, "examples", "three_lines", "train.py")
    spec = importlib.util.spec_from_file_location("three_lines", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Marks:
    """Makes a mark and adds up what it took."""

    def __init__(self):
        self.ns = self.calls = 0

    def __call__(self, mark, *arguments, **words):
        began = time.perf_counter_ns()
        mark(*arguments, **words)
        self.ns += time.perf_counter_ns() - began
        self.calls += 1


def clock_ns():
    """What the two readings of the clock around a call take themselves."""
    began = time.perf_counter_ns()
    for _ in range(CLOCK_LOOPS):
        time.perf_counter_ns()
    return (time.perf_counter_ns() - began) / CLOCK_LOOPS


def marks(options):
    """[(ns in marks, ns of the step, marks)] of steps as those of examples/three_lines, without its saves."""
    example = three_lines()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(example.Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = example.Sequences(0, options.count + WARM_UP_STEPS, rank, world)
    rows = []
    for step in range(1, len(data) + 1):
        mark, began = Marks(), time.perf_counter_ns()
        mark(holdfast.phase, "data")
        tokens = data[step - 1]
        mark(holdfast.phase, "forward")
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        mark(holdfast.phase, "backward")
        optimizer.zero_grad()
        loss.backward()
        mark(holdfast.phase, "optimizer")
        optimizer.step()
        mark(holdfast.step, step, loss=loss, samples=step * len(tokens) * world)
        if step > WARM_UP_STEPS:
            rows.append((mark.ns, time.perf_counter_ns() - began, mark.calls))
    return {"steps": rows, "clock_ns": clock_ns()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stall", "marks"))
    parser.add_argument("directory")
    parser.add_argument("--count", type=int, required=True, help="saves of each kind, or steps")
    parser.add_argument("--bytes", type=int, help="of this rank's state")
    parser.add_argument("--store", help="directory of the job's checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if not holdfast.attached():
        raise RuntimeError("not started by `holdfast run`: there is no arena, nothing would be measured")
    measured = stall(options) if options.what == "stall" else marks(options)
    with open(os.path.join(options.directory, f"rank{dist.get_rank()}.json"), "w", encoding="utf-8") as file:
        json.dump(measured, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
