# SPDX-License-Identifier: Apache-2.0
"""The main job on this machine: installs what is missing, builds, trains a small Llama on real text with four ranks
(data parallel 2 x tensor parallel 2) on two simulated nodes, kills a rank in the middle, and shows that the recovered
run equals an undisturbed one bit for bit.

Progress goes to stderr; stdout gets a short report and, as its last line, one JSON object. Exit 0 only when the digests
are equal and the model has learnt something. docs/quickstart.md explains each number.
"""
import argparse
import array
import collections
import gzip
import json
import math
import os
import random
import struct
import sys
import time

import build
import drill


STEPS = 160
PERSIST_EVERY = 20
CONTROL_STEP = PERSIST_EVERY  # the checkpoint that the negative control compares
DROPPED = {"step": 5, "rank": 0}
VOCAB = 2048
TEXT_BYTES = 1_500_000
NODES, GPUS = 2, 2
RANKS = NODES * GPUS
LOSS_RATIO_MAX = 0.8
SHOW_EVERY = 10  # steps between two lines of progress
LOOK_S = 0.1
STATE_S = 0.5
END_STATES = ("DONE", "FAILED", "CANCELLED", "PREEMPTED")

GCIDE = "/usr/share/dictd/gcide.dict.dz"
JARGON = "/usr/share/doc/jargon-text/jargon.txt.gz"
FORTUNES = "/usr/share/games/fortunes"
FORTUNE_FILES = ("computers", "cookie", "definitions", "literature", "wisdom")
GCIDE_SKIP_BYTES = 200_000  # licence and headers

CONFIG = {
    "model": {"vocab": VOCAB, "dim": 128, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 344, "seq_len": 128},
    "train": {"steps": STEPS, "seed": 7, "micro_batch": 4, "accumulate": 1, "threads": 1},
    "optimizer": {"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 10},
    "parallel": {"dp": 2, "tp": 2},
}
SAMPLES = 2 * CONFIG["train"]["micro_batch"] * CONFIG["train"]["accumulate"]  # a step: of both data-parallel groups


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="chooses the rank that is killed and the step (default 1)")
    parser.add_argument("--keep", metavar="DIR", help="work in DIR, which must be empty or new, and keep it")
    parser.add_argument("--negative-control", action="store_true",
                        help="also show that a run with one micro-batch left out is reported unequal")
    options = parser.parse_args()
    if options.keep and os.path.exists(options.keep) and (not os.path.isdir(options.keep) or os.listdir(options.keep)):
        parser.error(f"--keep {options.keep}: is no empty directory; name an empty or a new one")
    return options


# -- data


def write_text(directory):
    """Real English from Debian packages: dictionary, jargon file, fortunes; a fixed part of each."""
    parts = [(GCIDE, gzip.open, GCIDE_SKIP_BYTES, TEXT_BYTES // 2), (JARGON, gzip.open, 0, TEXT_BYTES // 3)]
    parts += [(os.path.join(FORTUNES, name), open, 0, TEXT_BYTES // 6 // len(FORTUNE_FILES)) for name in FORTUNE_FILES]
    path = os.path.join(directory, "text.txt")
    with open(path, "w", encoding="utf-8") as out:
        for name, opener, skip, size in parts:
            try:
                with opener(name, "rb") as source:
                    source.seek(skip)
                    out.write(source.read(size).decode("utf-8", "replace"))
            except FileNotFoundError:
                raise build.StepFailed(f"{name} is missing; scripts/install-deps installs dict-gcide, jargon-text and "
                                       "fortunes") from None
    return path


def build_data(binaries, directory):
    """Tokenizer and token files; gives their prefix."""
    prefix = os.path.join(directory, "text")
    build.say(f"tokenizer and token files of {TEXT_BYTES / 1e6:.1f} MB of text")
    build.run([os.path.join(binaries, "holdfast"), "data", "build", "--input", write_text(directory),
               "--vocab", str(VOCAB), "--out", prefix])
    return prefix


def tokens_of(prefix):
    """All tokens of a Megatron .bin file; the .idx says whether they have two bytes or four."""
    with open(prefix + ".idx", "rb") as file:
        magic, _version, code = struct.unpack("<9sQB", file.read(18))
    if magic != b"MMIDIDX\0\0":
        raise build.StepFailed(f"{prefix}.idx is no index file of tokens")
    values = array.array({8: "H", 4: "i"}[code])
    with open(prefix + ".bin", "rb") as file:
        values.frombytes(file.read())
    return values


def unigram_entropy(prefix):
    """Nats a token when only the frequencies of tokens are known: what a model must beat to have learnt anything."""
    counts = collections.Counter(tokens_of(prefix))
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())


# -- runs


class Stalls:
    """Times for which training threads stood still for snapshots, from the ranks' recorders while they run."""

    def __init__(self):
        self._seen = {}

    def look(self, cluster, job):
        for rank, steps in cluster.recorded_steps(job).items():
            for step in steps:
                if step.snapshot_stall_s:
                    self._seen[(rank, step.step)] = step.snapshot_stall_s * 1000

    def typical_ms(self):
        """The median over steps of the slowest rank's stall."""
        slowest = {}
        for (_, step), stall in self._seen.items():
            slowest[step] = max(stall, slowest.get(step, 0.0))
        return drill.median(slowest.values())


def show(row):
    build.say(f"  step {row['step']}/{STEPS}  attempt {row['attempt']}  loss {row['loss']:.4f}  "
              f"{row['tokens_per_s']:.0f} tokens/s")


def follow(cluster, job, stalls=None, until=None):
    """Shows progress until the job has ended, or `until(rows)` is true."""
    shown, asked, ended = 0, 0.0, False
    while not ended:
        if time.monotonic() - asked > STATE_S:  # a program of its own each time, on the cores that train
            ended = cluster.job_state(job) in END_STATES
            asked = time.monotonic()
        if stalls:
            stalls.look(cluster, job)
        rows = cluster.steps(job)
        if rows and (rows[-1]["step"] >= shown + SHOW_EVERY or (ended and rows[-1]["step"] != shown)):
            shown = rows[-1]["step"]
            show(rows[-1])
        if until and until(rows):
            return
        time.sleep(LOOK_S)  # between two looks; nothing depends on it


def done_rows(cluster, job):
    """The step log of a job that must be DONE and without gaps."""
    cluster.wait_state(job, "DONE", 60)
    rows = cluster.steps(job)
    gaps = drill.step_gaps(rows, STEPS)
    if gaps:
        raise build.StepFailed(f"the step log has gaps: {'; '.join(gaps)}")
    return rows


class Disturbed:
    """The main job with a rank killed in the middle, and what was seen of it."""

    def __init__(self, directory, binaries, config, seed):
        choice = random.Random(seed)
        self.victim = choice.randrange(RANKS)
        step = STEPS // 2 + choice.randrange(-STEPS // 10, STEPS // 10)
        stalls = Stalls()
        with drill.Cluster(os.path.join(directory, "a"), NODES, GPUS, binaries) as cluster:
            job = cluster.submit(drill.native_job("quickstart", config, NODES, GPUS, PERSIST_EVERY))
            self.job = drill.job_name(job)
            build.say(f"{self.job}: {RANKS} ranks on {NODES} nodes; rank {self.victim} dies after step {step}")
            follow(cluster, job, stalls, until=lambda rows: rows and rows[-1]["step"] >= step)
            time.sleep(choice.random() * step_time(cluster.steps(job)))  # the seeded moment within a step
            self.fault = drill.Fault(lambda: cluster.kill_rank(job, self.victim))
            build.say(f"SIGKILL to rank {self.victim}")
            self.fault.wait_first_step(cluster, job, 2, RANKS)
            build.say(f"all ranks finished a step again after {self.fault.first_step_ms:.0f} ms")
            follow(cluster, job, stalls)
            self.rows = done_rows(cluster, job)
            incidents = cluster.incidents(job)
            if len(incidents) != 1:
                raise build.StepFailed(f"one fault, but {len(incidents)} incidents: {json.dumps(incidents)}")
            self.incident = incidents[0]
            self.times = self.fault.times(self.incident)
            self.digest = cluster.digest(job, STEPS)
            self.stall_ms = stalls.typical_ms()


def step_time(rows):
    """Seconds a step, by the newest line of the step log."""
    return SAMPLES * CONFIG["model"]["seq_len"] / rows[-1]["tokens_per_s"] if rows else 0.0


def undisturbed_run(directory, binaries, config):
    """The same job without a fault, in its own state and store; gives (digest, digest at CONTROL_STEP, rows)."""
    build.say("the same job undisturbed, in its own state and store")
    with drill.Cluster(os.path.join(directory, "b"), NODES, GPUS, binaries) as cluster:
        job = cluster.submit(drill.native_job("undisturbed", config, NODES, GPUS, PERSIST_EVERY))
        follow(cluster, job)
        return cluster.digest(job, STEPS), cluster.digest(job, CONTROL_STEP), done_rows(cluster, job)


def control_digest(directory, binaries, config):
    """The digest at CONTROL_STEP of a run in which one rank leaves out one micro-batch."""
    build.say(f"negative control: rank {DROPPED['rank']} leaves out a micro-batch of step {DROPPED['step']}")
    faults = drill.write_json(os.path.join(directory, "faults.json"), {"drop_micro_batch": DROPPED})
    with drill.Cluster(os.path.join(directory, "c"), NODES, GPUS, binaries) as cluster:
        job = cluster.submit(drill.native_job("control", config, NODES, GPUS, PERSIST_EVERY,
                                              {"HOLDFAST_FAULT_FILE": faults}))
        cluster.wait_checkpoint(job, CONTROL_STEP, 120)
        cluster.cli("cancel", f"j-{job}")
        cluster.wait_state(job, "CANCELLED", 60)
        return cluster.digest(job, CONTROL_STEP)


# -- report


def judge(result, entropy):
    """What is wrong with the result, one sentence each."""
    problems = []
    if not result["bitwise_equal"]:
        problems.append("the recovered run differs from the undisturbed one")
    # Written so that a loss that is no number fails, too.
    if not result["loss_last"] <= LOSS_RATIO_MAX * result["loss_first"]:
        problems.append(f"loss_last {result['loss_last']:.4f} is more than {LOSS_RATIO_MAX} of loss_first")
    if not result["loss_last"] < entropy:
        problems.append(f"loss_last {result['loss_last']:.4f} is not below the text's unigram entropy {entropy:.4f}")
    return problems


def report(result, entropy, run, reference):
    incident, times = run.incident, run.times
    print(f"{result['job']}: {result['steps']} steps, loss {result['loss_first']:.4f} -> {result['loss_last']:.4f} "
          f"(unigram entropy of the text: {entropy:.4f})")
    print(f"killed: rank {run.victim}, with SIGKILL")
    print(f"named:  {incident.get('fault_class')} of rank {', '.join(map(str, incident.get('ranks', [])))}: "
          f"{incident.get('what', '')}")
    print("after the kill: " + ", ".join(f"{name[:-3].replace('_', ' ')} {times[name]} ms" for name in times))
    print(f"steps done again: {result['steps_lost']}; a snapshot holds the training thread for "
          f"{result['checkpoint_stall_ms']} ms")
    print(f"state digest, recovered:   {run.digest}")
    print(f"state digest, undisturbed: {reference}  ({'equal' if run.digest == reference else 'DIFFERENT'})")


def run(options, directory):
    started = time.monotonic()
    binaries = build.binaries("release", drill.BINARIES)
    prefix = build_data(binaries, directory)
    entropy = unigram_entropy(prefix)
    config = drill.write_json(os.path.join(directory, "train.yaml"),
                              {**CONFIG, "data": {"kind": "tokens", "prefix": prefix}})
    main_run = Disturbed(directory, binaries, config, options.seed)
    reference, control_reference, reference_rows = undisturbed_run(directory, binaries, config)
    losses = drill.final_losses(main_run.rows)
    result = {
        "job": main_run.job, "steps": STEPS, "loss_first": losses[1], "loss_last": losses[STEPS],
        "steps_lost": drill.redone_steps(main_run.rows), "noticed_ms": main_run.times["noticed_ms"],
        "first_step_ms": main_run.times["first_step_ms"], "checkpoint_stall_ms": drill.rounded(main_run.stall_ms),
        "bitwise_equal": main_run.digest == reference and losses == drill.final_losses(reference_rows),
    }
    problems = judge(result, entropy)
    report(result, entropy, main_run, reference)
    if options.negative_control:
        unequal = control_digest(directory, binaries, config) != control_reference
        print(f"negative control, one micro-batch left out: {'unequal, as it must be' if unequal else 'EQUAL'}")
        if not unequal:
            problems.append("the negative control was not told apart from the undisturbed run")
    for problem in problems:
        print(f"error: {problem}")
    print(f"took {time.monotonic() - started:.0f} s, installing and building included")
    print(json.dumps(result), flush=True)
    return 1 if problems else 0


def main():
    options = parse_arguments()
    drill.end_on_signals()
    try:
        with drill.WorkDirectory(options.keep) as directory:
            return run(options, directory)
    except (build.StepFailed, AssertionError, TimeoutError, OSError) as failure:
        build.say(f"error: {failure}")
        return 1
    except drill.Interrupted as interrupted:
        build.say(f"ended by {interrupted}; everything was stopped")
        return 1


if __name__ == "__main__":
    sys.exit(main())
