# SPDX-License-Identifier: Apache-2.0
"""Base of the cluster tests: a directory of their own, jobs of the test rank, the undisturbed run, nothing left."""
import json
import os
import shutil
import sys
import tempfile
import unittest

import processes
from holdfast_cluster import Cluster, final_losses, step_gaps

STEPS = 60
STEP_MS = 20
STATE_BYTES = 256 << 10
PERSIST_EVERY = 5
JOB_DEADLINE_S = 120  # the machine may be busy; a job of 60 steps takes about 3 s alone


def temporary_directory():
    """A short path: Unix sockets have 107 bytes."""
    return tempfile.mkdtemp(prefix="hf_", dir=os.environ.get("HOLDFAST_TEST_TMP"))


def test_rank_job(cluster, name, steps=STEPS, step_ms=STEP_MS, extra=(), **fields):
    """The specification of a job of holdfast-test-rank: 2 nodes x 2 GPUs unless `fields` say otherwise."""
    spec = {"name": name, "nodes": 2, "gpus_per_node": 2, "snapshot_every_steps": 1,
            "persist_every_steps": PERSIST_EVERY, "expects_checkpoints": True, "fence": "commit", "restarts_max": 50,
            "command": [os.path.join(cluster.binaries, "holdfast-test-rank"), "--steps", str(steps), "--bytes",
                        str(STATE_BYTES), "--step-ms", str(step_ms), *map(str, extra)]}
    spec.update(fields)
    return {key: value for key, value in spec.items() if value is not None}


NATIVE_TRAINER = {
    "model": {"vocab": 256, "dim": 128, "layers": 2, "heads": 4, "ffn": 344, "seq_len": 64},
    "data": {"kind": "synthetic"},
    "train": {"seed": 5, "micro_batch": 2, "threads": 1},
    "optimizer": {"lr": 1e-3, "warmup_steps": 10},
    "parallel": {"dp": 2, "tp": 2},
}


def native_job(cluster, name, steps, model=None, **fields):
    """The specification of a small job of the native trainer: 2 nodes x 2 GPUs; `model` changes its model."""
    path = os.path.join(cluster.directory, f"{name}.train.yaml")
    config = {**NATIVE_TRAINER, "model": {**NATIVE_TRAINER["model"], **(model or {})},
              "train": {**NATIVE_TRAINER["train"], "steps": steps}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return {"name": name, "trainer_config": path, "nodes": 2, "gpus_per_node": 2, "snapshot_every_steps": 1,
            "persist_every_steps": 10, **fields}


class Undisturbed:
    """Digest and losses of a run without faults, in its own state and store; one for each kind of job in a process."""

    _known = {}

    @classmethod
    def get(cls, key, make_spec, steps, deadline_s=JOB_DEADLINE_S):
        if key not in cls._known:
            directory = temporary_directory()
            try:
                with Cluster(directory) as cluster:
                    job = cluster.submit(make_spec(cluster))
                    cluster.wait_state(job, "DONE", deadline_s)
                    cls._known[key] = (cluster.digest(job, steps), final_losses(cluster.steps(job)))
            finally:
                shutil.rmtree(directory, ignore_errors=True)
        return cls._known[key]


class ClusterCase(unittest.TestCase):
    """One cluster for each test; `NODES` x `GPUS` simulated devices."""

    NODES = 2
    GPUS = 2
    maxDiff = None

    def setUp(self):
        self.directory = temporary_directory()
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.cluster = Cluster(self.directory, self.NODES, self.GPUS)
        self.addCleanup(self.no_process_left)
        self.cluster.up()

    def tearDown(self):
        result = self._outcome.result
        if any(test is self for test, _ in result.errors + result.failures):
            self.keep_evidence()
            self.cluster.stop_hard()
        else:
            self.cluster.down()

    def keep_evidence(self):
        """Copies state without checkpoints when HOLDFAST_TEST_KEEP names a directory."""
        keep = os.environ.get("HOLDFAST_TEST_KEEP")
        if keep:
            target = os.path.join(keep, self.id())
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self.cluster.state, target, ignore=shutil.ignore_patterns("store", "*.sock", "sock", "db"),
                            ignore_dangling_symlinks=True)

    def no_process_left(self):
        left = processes.of_directory(self.directory)
        text = [processes.describe(pid) for pid in left]
        self.cluster.stop_hard()
        self.assertEqual(text, [], "processes left behind")

    def run_job(self, name="a", **options):
        """Submits a job of the test rank."""
        return self.cluster.submit(test_rank_job(self.cluster, name, **options))

    def assert_equal_to_undisturbed(self, job, steps=STEPS):
        """Step log contiguous, losses and final state digest equal to those of the run without faults."""
        self.assert_equal_to(job, steps, Undisturbed.get(
            ("test-rank", steps), lambda c: test_rank_job(c, "reference", steps=steps), steps))

    def assert_equal_to(self, job, steps, reference):
        """The same against `reference`, what Undisturbed.get() gives."""
        digest, losses = reference
        rows = self.cluster.steps(job)
        self.assertEqual(step_gaps(rows, steps), [])
        self.assertEqual(final_losses(rows), losses)
        self.assertEqual(self.cluster.digest(job, steps), digest)

    def only_incident(self, job):
        incidents = self.cluster.incidents(job)
        self.assertEqual(len(incidents), 1, incidents)
        return incidents[0]


def main():
    """unittest.main() that says so in one line when nothing ran because root is needed."""
    program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    if result.testsRun and len(result.skipped) == result.testsRun:
        print(f"every test was skipped: {result.skipped[0][1]}")
    sys.exit(0 if result.wasSuccessful() else 1)
