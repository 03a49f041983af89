# SPDX-License-Identifier: Apache-2.0
"""A rank that trains nothing, in plain Python over the package `holdfast`: buffers of the standard library as tensors.

usage: python_rank.py DIR STEPS STEP_MS [HOLD_AT]. Appends {"attempt","step","digest"} to DIR/rank<r> after each step,
and what it started from. The state after step n is a function of (rank, n), whatever happened on the way. At step
HOLD_AT of the first attempt it waits until DIR/go exists.
"""
import array
import hashlib
import json
import os
import sys
import time

WORDS, BYTES = 3000, 70_000


def new_state(rank, replicated):
    return {"weights": array.array("d", [rank + i for i in range(WORDS)]),
            "bytes": bytearray(BYTES),
            "view": memoryview(bytearray(48)).cast("i", (3, 4)),
            "shared": replicated({"table": bytearray(256), "count": 0}),
            "loader": {"epoch": 0, "seen": [], "key": b"\0\xff", "big": 1 << 80, "pair": (rank, None)},
            "rate": 0.1, "on": True, "name": "ä"}


def inner(state, name):
    return getattr(state[name], "value", state[name])


def update(state, step):
    """One step of "training"; every part of the state depends on all steps before."""
    weights, data, view, shared = state["weights"], state["bytes"], state["view"], inner(state, "shared")
    for i in range(step % 7, WORDS, 7):
        weights[i] = weights[i] * 0.5 + step
    for i in range(step % 97, BYTES, 97):
        data[i] = (data[i] * 3 + step) % 256
    view[step % 3, step % 4] += step
    shared["table"][step % 256] += 1
    shared["count"] += 1
    loader = state["loader"]
    loader["epoch"] = step // 10
    loader["seen"] = (loader["seen"] + [step])[-5:]
    loader["big"] += step
    state["rate"] = state["rate"] * 0.75 + step


def digest(state):
    shared = inner(state, "shared")
    total = hashlib.sha256()
    for part in (state["weights"].tobytes(), bytes(state["bytes"]), state["view"].tobytes(), bytes(shared["table"])):
        total.update(part)
    total.update(repr([shared["count"], state["loader"], state["rate"], state["on"], state["name"]]).encode())
    return total.hexdigest()


def expected(rank, steps):
    """What an undisturbed run ends with."""
    state = new_state(rank, lambda value: value)
    for step in range(1, steps + 1):
        update(state, step)
    return digest(state)


def main():
    import holdfast
    directory, steps, step_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hold_at = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    holdfast.init(timeout_s=60)
    rank = holdfast.rank()
    state = new_state(rank, holdfast.replicated)
    with open(os.path.join(directory, f"rank{rank}"), "a", encoding="utf-8") as log:
        def note(**fields):
            log.write(json.dumps({"attempt": holdfast.attempt(), "samples": holdfast.samples(), **fields}) + "\n")
            log.flush()
        step = holdfast.load(state)
        note(start=step, restore=os.environ["HOLDFAST_RESTORE"], digest=digest(state))
        while step < steps and not holdfast.should_stop():
            step += 1
            with holdfast.phase("forward"):
                time.sleep(step_ms / 1000)
            while step == hold_at and holdfast.attempt() == 1 and not os.path.exists(os.path.join(directory, "go")):
                time.sleep(0.01)
            with holdfast.phase("optimizer"):
                update(state, step)
            holdfast.save(state, step, samples=8 * step, persist=True if step == steps else None)
            holdfast.step(step, loss=1 / step, samples=8 * step)
            note(step=step, digest=digest(state))
        note(end=step, stop=holdfast.should_stop())


if __name__ == "__main__":
    main()
