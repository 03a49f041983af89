# SPDX-License-Identifier: Apache-2.0
"""The Python package `holdfast` with a real PyTorch (scripts/test --long pytorch): tensors, optimizers and meshes
without a keeper, and FSDP2 ranks of a cluster that are killed, lose their memory, and change their number."""
import json
import os
import subprocess
import sys
import unittest

SOURCE, BUILD = os.environ["HOLDFAST_SOURCE_DIR"], os.environ["HOLDFAST_BUILD_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cluster"))
from cluster_case import ClusterCase  # noqa: E402
from holdfast_cluster import job_name  # noqa: E402

PYTHON = os.environ.get("HOLDFAST_TORCH_PYTHON")
STEPS, PERSIST_EVERY = 400, 20
DEADLINE_S = 400  # importing torch takes most of it on a busy machine
REASON = "HOLDFAST_TORCH_PYTHON names no Python with torch"


@unittest.skipUnless(PYTHON, REASON)
class Checks(unittest.TestCase):
    def test_tensors_optimizers_and_meshes(self):
        done = subprocess.run([PYTHON, "-B", os.path.join(SOURCE, "tests", "python", "torch_checks.py")],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-8000:])
        self.assertRegex(done.stderr, r"Ran [1-9]\d* tests")


@unittest.skipUnless(PYTHON, REASON)
class Sharded(ClusterCase):
    NODES, GPUS = 1, 4
    _undisturbed = {}

    def start(self, name, ranks, steps=STEPS, arguments=()):
        self.folder = os.path.join(self.directory, name)
        os.makedirs(self.folder, exist_ok=True)
        spec = {"name": name, "nodes": 1, "gpus_per_node": ranks, "snapshot_every_steps": 1,
                "persist_every_steps": PERSIST_EVERY, "expects_checkpoints": True, "fence": "commit",
                "environment": {"PYTHONPATH": os.path.join(SOURCE, "client", "python"), "PYTHONDONTWRITEBYTECODE": "1",
                                "OMP_NUM_THREADS": "1",
                                "HOLDFAST_LIBRARY": os.path.join(BUILD, "lib", "libholdfast.so.1")},
                "command": [PYTHON, os.path.join(SOURCE, "tests", "cluster", "python_torch_rank.py"), self.folder,
                            str(steps)]}
        return self.cluster.submit(spec, arguments=arguments)

    def notes(self, rank=0):
        with open(os.path.join(self.folder, f"rank{rank}"), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def undisturbed(self):
        if not self._undisturbed:
            job = self.start("undisturbed", 2)
            self.cluster.wait_state(job, "DONE", DEADLINE_S)
            self._undisturbed["digest"] = self.notes()[-1]["digest"]
        return self._undisturbed["digest"]

    def assert_undisturbed_end(self):
        for rank in range(2):
            end = self.notes(rank)[-1]
            self.assertEqual((end["end"], end["seen"]), (STEPS, 4 * STEPS))
        digest = self.notes()[-1]["digest"]
        self.assertEqual(digest, self.undisturbed())

    def test_a_killed_rank_goes_on_from_memory(self):
        job = self.start("killed", 2)
        self.cluster.wait_step(job, 30, DEADLINE_S)
        self.cluster.kill_rank(job, 1)
        self.cluster.wait_state(job, "DONE", DEADLINE_S)
        starts = [note for note in self.notes() if "start" in note]
        self.assertEqual([note["restore"].partition(":")[0] for note in starts], ["scratch", "snapshot"])
        self.assertEqual(starts[1]["seen"], 4 * starts[1]["start"])
        self.assert_undisturbed_end()

    def test_from_the_store_with_the_same_and_with_another_number_of_ranks(self):
        job = self.start("lost", 2)
        self.cluster.wait_checkpoint(job, PERSIST_EVERY, DEADLINE_S)
        self.cluster.kill_keeper("n0", job)
        self.cluster.wait_state(job, "DONE", DEADLINE_S)
        self.assertIn("checkpoint", [n["restore"].partition(":")[0] for n in self.notes() if "start" in n])
        self.assert_undisturbed_end()
        for ranks in (1, 3):
            again = self.start(f"on{ranks}", ranks, arguments=("--from", f"{job_name(job)}@{STEPS}"))
            self.cluster.wait_state(again, ("DONE", "FAILED"), DEADLINE_S)
            end = self.notes()[-1]
            self.assertEqual((end["end"], end["world"], end["digest"]), (STEPS, ranks, self.undisturbed()))


if __name__ == "__main__":
    unittest.main()
