# SPDX-License-Identifier: Apache-2.0
"""scripts/bench recovery: seconds from a fault in one of two ranks to the first step that all ranks finished after it.

The job is that of peers' recovery_train.py: a Llama with bytes as tokens, dim 256, 4 layers, 4 heads, 4 x 128 tokens a
rank and step, one thread a rank, persisted every 5 steps; SIGKILL or SIGSTOP of rank 1 once it has finished step 12.
Each run is a job of its own. Ours ends with the first step finished by *all* ranks of the new attempt, by the ranks'
own clocks.
"""
import json
import os
import signal
import subprocess

import build
import drill
import processes

STEPS = 400            # far behind the fault: the job is cancelled once the recovery was measured
FAULT_STEP = 12
VICTIM = 1
RANKS = 2
PERSIST_EVERY = 5
RUNS = 10
RUNS_FULL = 30
MEASURE_S = 60         # a recovery that takes longer is an error of the run
PEER_LIMIT_S = 120     # for one run of a peer, start included

CONFIG = {
    "model": {"vocab": 256, "dim": 256, "layers": 4, "heads": 4, "ffn": 680, "seq_len": 128, "tied": True},
    "data": {"kind": "synthetic"},
    "train": {"steps": STEPS, "seed": 1, "micro_batch": 4, "threads": 1},
    "optimizer": {"lr": 3e-4},
    "parallel": {"dp": 2, "tp": 1},
}

CASES = (  # our case and metric, the signal, the peers' name of the fault
    ("sigkill", "sigkill_to_step_s", signal.SIGKILL, "kill"),
    ("sigstop", "sigstop_to_step_s", signal.SIGSTOP, "hang"),
)

# Peers by fault. torchrun never notices a stopped rank without its process group's timeout: a run of 45 s, with --full.
PEERS = {"kill": ("torchrun", "torchft", "ft_launcher(heartbeat 10 s)"),
         "hang": ("torchft", "ft_launcher(heartbeat 10 s)")}
PEERS_FULL = {"kill": PEERS["kill"], "hang": ("torchrun(pg timeout 10 s)",) + PEERS["hang"]}


class PeerRuns:
    """Runs recovery_peers.py with an interpreter that has the peers; None of it when there is none."""

    def __init__(self, full):
        self._python = os.environ.get("HOLDFAST_PEERS")
        self._full = full
        self.seconds = {}  # {(fault, peer): [seconds]}
        self.failed = {}   # {(fault, peer): runs without a recovery}
        if self._python:
            self._script = find_script()

    def once(self, fault):
        """One run of each peer."""
        if not self._python:
            return
        for peer in (PEERS_FULL if self._full else PEERS)[fault]:
            seconds = self._one(peer, fault)
            if seconds is None:
                self.failed[fault, peer] = self.failed.get((fault, peer), 0) + 1
            else:
                self.seconds.setdefault((fault, peer), []).append(seconds)

    def _one(self, peer, fault):
        command = [self._python, self._script, "--peer", peer, "--fault", fault, "--limit", str(PEER_LIMIT_S)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=2 * PEER_LIMIT_S)
            row = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            build.say(f"  {peer}, {fault}: {type(error).__name__}: {error}")
            return None
        # torchft goes on without the lost rank; its time is that of the rank being back, where there is one.
        seconds = row.get("recover_s", row.get("survivor_s"))
        build.say(f"  {peer}, {fault}: {seconds if seconds is not None else row.get('error')}")
        return seconds

    def of(self, fault):
        """[(peer, median, runs)], the fastest last."""
        found = [(peer, drill.median(values), len(values))
                 for (of, peer), values in self.seconds.items() if of == fault]
        return sorted(found, key=lambda entry: -entry[1])


def find_script():
    folder = os.environ.get("HOLDFAST_PEERS_DIR")
    if not folder:
        raise build.StepFailed("HOLDFAST_PEERS is set, but not HOLDFAST_PEERS_DIR, the folder of recovery_peers.py")
    script = os.path.join(folder, "recovery_peers.py")
    if not os.path.exists(script):
        raise build.StepFailed(f"HOLDFAST_PEERS_DIR={folder} has no recovery_peers.py")
    return script


class Run:
    """One fault in one job."""

    def __init__(self, cluster, name, config, signo):
        job = cluster.submit(drill.native_job(name, config, 1, RANKS, PERSIST_EVERY))
        try:
            cluster.wait_step(job, FAULT_STEP, drill.START_DEADLINE_S, ranks=RANKS)
            self.step_s = step_time(cluster.recorded_steps(job).get(VICTIM, []))
            at = cluster.kill_rank(job, VICTIM, signo)
            self.seconds = cluster.wait_first_step(job, 2, RANKS, MEASURE_S) - at
            incident = processes.wait_until(lambda: next(iter(cluster.incidents(job)), None), 10, "an incident", 0.1)
            self.from_memory = incident.get("restored_from", {}).get("source") == "SOURCE_SNAPSHOT"
            self.redone = redone(cluster, job)
        finally:
            cluster.cli("cancel", f"j-{job}", expect=None)
        cluster.wait_state(job, "CANCELLED", 60)


def step_time(steps):
    """Median seconds between two finished steps; the first step, which also warms up, is left out."""
    done = [step.done_s for step in sorted(steps, key=lambda step: step.step) if step.step >= 2]
    return drill.median([later - earlier for earlier, later in zip(done, done[1:])])


def redone(cluster, job):
    """Steps that the first attempt finished and the second did again, by the step log."""
    def logged():
        rows = cluster.steps(job)
        return rows if any(row["attempt"] > 1 for row in rows) else None

    rows = processes.wait_until(logged, 20, f"a line of the second attempt in {cluster.steps_path(job)}")
    old = max(row["step"] for row in rows if row["attempt"] == 1)
    new = min(row["step"] for row in rows if row["attempt"] > 1)
    return max(0, old - new + 1)


def measure(directory, binaries, runs, peers):
    """{case: [Run]}; our runs and the peers' take turns."""
    config = drill.write_json(os.path.join(directory, "train.yaml"), CONFIG)
    measured = {case: [] for case, _, _, _ in CASES}
    with drill.Cluster(os.path.join(directory, "c"), 1, RANKS, binaries) as cluster:
        for index in range(runs):
            for case, _, signo, fault in CASES:
                run = Run(cluster, f"{case}-{index}", config, signo)
                build.say(f"run {index + 1}/{runs} {case}: {run.seconds:.3f} s, step {run.step_s:.3f} s, "
                          f"{run.redone} steps redone, from {'memory' if run.from_memory else 'the store'}")
                measured[case].append(run)
                peers.once(fault)
    return measured


def lines(measured, peers):
    """A line for each peer and metric, the fastest peer's last."""
    for case, metric, _, fault in CASES:
        runs = measured[case]
        values = sorted(run.seconds for run in runs)
        for peer, against, peer_runs in peers.of(fault) or [(None, None, 0)]:
            yield {
                "bench": "recovery", "case": case, "metric": metric, "value": drill.rounded(drill.median(values)),
                "unit": "s", "runs": len(values), "low": drill.rounded(values[0]), "high": drill.rounded(values[-1]),
                "against": peer, "against_value": drill.rounded(against),
                "step_s": drill.rounded(drill.median([run.step_s for run in runs])),
                "redone_steps": drill.median([run.redone for run in runs]),
                "redone_steps_max": max(run.redone for run in runs),
                "from_memory": sum(run.from_memory for run in runs),
                "against_runs": peer_runs, "against_failed": peers.failed.get((fault, peer), 0),
            }


def run(options, directory):
    """Prints the lines of this bench."""
    peers = PeerRuns(options.full)
    binaries = build.binaries("release", drill.BINARIES)
    for line in lines(measure(directory, binaries, RUNS_FULL if options.full else RUNS, peers), peers):
        print(json.dumps(line), flush=True)
