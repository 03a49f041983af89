# SPDX-License-Identifier: Apache-2.0
"""scripts/bench pytorch: how soon `holdfast look` names the data loader's child in which an unmodified script hangs.

One look begins when the one before has ended, from before the hang on, so that it falls on a random moment of a look.
What is right is known from outside: the child says its pid just before it reads, and the FIFO is this bench's.
"""
import json
import os
import subprocess
import time

import bench_package
import build
import drill

RUNS, RANKS, HANG_AT = 5, 2, 400
LIMIT_S = 60            # from the hang until it is named
START_LIMIT_S = 120
LOOK_LIMIT_S = 30
POLL_S = 0.1
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_look_rank.py")
LOOK_NOT_FOUND, LOOK_NOT_RUNNING = 3, 4  # no rank is there yet


def look(binaries, state):
    """What rank 0 does, or None while there is none."""
    done = subprocess.run([os.path.join(binaries, "holdfast"), "look", "j-1", "--state", state, "--rank", "0",
                           "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LOOK_LIMIT_S, check=False)
    if done.returncode in (LOOK_NOT_FOUND, LOOK_NOT_RUNNING):
        return None
    if done.returncode != 0:
        raise build.StepFailed(f"holdfast look ended with {done.returncode}: {done.stderr}")
    ranks = json.loads(done.stdout)["ranks"]
    return ranks[0] if ranks and ranks[0]["pid"] else None


def frame_of(rank, pid):
    """The frame of the script in process `pid`, as "read_shard:36", or None."""
    for process in rank["processes"]:
        for frame in (process["python"] or []) if process["pid"] == pid else []:
            if os.path.basename(frame["file"]) == os.path.basename(SCRIPT):
                return f"{frame['function']}:{frame['line']}"
    return None


def read_mark(path):
    """(moment of the hang, pid), or None before it."""
    try:
        with open(path, encoding="ascii") as file:
            moment, pid = file.read().split()
    except FileNotFoundError:
        return None
    return float(moment), int(pid)


class Watch:
    """Looks again and again, from a job's start until its hang is named."""

    def __init__(self, binaries, state, fifo, mark):
        self._binaries, self._state, self._fifo, self._mark = binaries, state, fifo, mark
        self.seconds = self.frame = None
        self.named_wrongly = []  # judgements of looks that ended before the hang, or of something else

    def run(self, process):
        deadline = time.monotonic() + START_LIMIT_S
        while self.seconds is None:
            if process.poll() is not None:
                raise build.StepFailed(f"the script that is to hang ended with {process.returncode}")
            hang = read_mark(self._mark)
            if time.monotonic() > (hang[0] + LIMIT_S if hang else deadline):
                raise TimeoutError(f"the script's child {'was not named' if hang else 'did not hang'} in time")
            rank = look(self._binaries, self._state) if os.path.exists(self._state) else None
            if rank is None:
                time.sleep(POLL_S)
                continue
            self._judge(rank, time.monotonic())

    def _judge(self, rank, now):
        hang = read_mark(self._mark)
        text = rank["judgement"]
        if hang and str(hang[1]) in text and self._fifo in text:
            self.seconds, self.frame = now - hang[0], frame_of(rank, hang[1])
        elif text:
            self.named_wrongly.append(text)


def once(binaries, directory, index):
    """One job whose data loader hangs: how it was seen."""
    folder = os.path.join(directory, f"look{index}")
    os.mkdir(folder)
    state, fifo, mark = (os.path.join(folder, name) for name in ("s", "shard-7", "mark"))
    os.mkfifo(fifo)
    # For reading and writing: it has a writer that never writes, so that to open it does not block.
    writer = os.open(fifo, os.O_RDWR)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": directory}
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.Popen(bench_package.command(binaries, state, RANKS, SCRIPT, fifo, mark, str(HANG_AT)),
                                   env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    watch = Watch(binaries, state, fifo, mark)
    try:
        watch.run(process)
    finally:
        bench_package.stop(process)
        os.close(writer)
    return watch


def python_named(options, directory, binaries):
    runs, seen = options.runs or RUNS, []
    for index in range(runs):
        watch = once(binaries, directory, index)
        build.say(f"run {index + 1}/{runs} hang of a data loader's child: named after {watch.seconds:.2f} s, "
                  f"frame {watch.frame}, named wrongly: {watch.named_wrongly}")
        seen.append(watch)
    values = sorted(watch.seconds for watch in seen)
    yield {"bench": "pytorch", "case": "dataloader", "metric": "python_named_s", "unit": "s",
           "value": drill.rounded(drill.median(values)), "runs": runs, "low": drill.rounded(values[0]),
           "high": drill.rounded(values[-1]), "against": None, "against_value": None,
           "with_frame": sum(watch.frame is not None for watch in seen),
           "named_wrongly": sum(len(watch.named_wrongly) for watch in seen)}
