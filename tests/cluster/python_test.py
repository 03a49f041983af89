#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package `holdfast` in ranks of a real cluster, without torch: marks, snapshots, recovery from memory and
from the store, a stop with a last checkpoint, a checkpoint on demand."""
import json
import os
import sys

import processes
import python_rank
from cluster_case import JOB_DEADLINE_S, ClusterCase, main
from holdfast_cluster import job_name, json_lines, step_gaps

SOURCE, BUILD = os.environ["HOLDFAST_SOURCE_DIR"], os.environ["HOLDFAST_BUILD_DIR"]
STEPS, STEP_MS, PERSIST_EVERY = 60, 20, 10


class PythonCase(ClusterCase):
    RANKS = 4

    def start(self, name="python", steps=STEPS, step_ms=STEP_MS, hold_at=0, **fields):
        spec = {"name": name, "nodes": 2, "gpus_per_node": 2, "snapshot_every_steps": 1,
                "persist_every_steps": PERSIST_EVERY, "expects_checkpoints": True, "fence": "commit",
                "environment": {"PYTHONPATH": os.path.join(SOURCE, "client", "python"), "PYTHONDONTWRITEBYTECODE": "1",
                                "HOLDFAST_LIBRARY": os.path.join(BUILD, "lib", "libholdfast.so.1")},
                "command": [sys.executable, os.path.abspath(python_rank.__file__), self.directory, str(steps),
                            str(step_ms), str(hold_at)], **fields}
        return self.cluster.submit(spec)

    def notes(self, rank):
        return json_lines(os.path.join(self.directory, f"rank{rank}"))

    def starts(self, rank):
        return [note for note in self.notes(rank) if "start" in note]

    def assert_states(self, steps=STEPS):
        """Every rank ended with the state of an undisturbed run, and was right wherever it started."""
        for rank in range(self.RANKS):
            notes = self.notes(rank)
            self.assertEqual(notes[-1]["end"], steps, notes[-1])
            self.assertEqual(notes[-2]["digest"], python_rank.expected(rank, steps))
            for start in self.starts(rank):
                self.assertEqual(start["digest"], python_rank.expected(rank, start["start"]), start)
                self.assertEqual(start["samples"], 8 * start["start"])


class Trains(PythonCase):
    def test_steps_snapshots_and_checkpoints(self):
        job = self.start()
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assert_states()
        rows = self.cluster.steps(job)
        self.assertEqual(step_gaps(rows, STEPS), [])
        self.assertEqual([rows[9][key] for key in ("step", "samples", "loss", "lr")], [10, 80, 0.1, None])
        steps = self.cluster.committed_steps(job)
        self.assertIn(STEPS, steps)
        self.assertTrue(all(step % PERSIST_EVERY == 0 for step in steps), steps)
        self.assertEqual(self.cluster.tool("holdfast-ckpt", "verify", self.cluster.store()).code, 0)

    def test_what_is_replicated_is_written_once(self):
        job = self.start(steps=5)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        shown = json.loads(self.cluster.tool("holdfast-ckpt", "show", "--json", self.cluster.store(),
                                             f"{job_name(job)}@5").out)
        names = [tensor["name"] for tensor in shown["tensors"]]
        self.assertEqual(names.count("shared/shared/table"), 1)
        self.assertEqual([f"rank{rank}/weights" in names for rank in range(4)], [True] * 4)

    def test_a_checkpoint_on_demand(self):
        job = self.start(steps=5000, persist_every_steps=1000)
        self.cluster.wait_step(job, 5)
        self.cluster.cli("save", job_name(job))
        found = processes.wait_until(lambda: self.cluster.committed_steps(job), 30,
                                     "a checkpoint that was asked for", 0.1)
        self.assertLess(found[0], 1000)
        self.cluster.cli("cancel", job_name(job))
        self.cluster.wait_state(job, "CANCELLED", 60)

    def test_a_stop_leads_to_a_last_checkpoint(self):
        job = self.start(steps=100000, persist_every_steps=50000, time_limit_s=4)
        self.cluster.wait_state(job, "FAILED", JOB_DEADLINE_S)
        ends = [self.notes(rank)[-1] for rank in range(4)]
        self.assertEqual({end["stop"] for end in ends}, {"time limit"})
        self.assertEqual(len({end["end"] for end in ends}), 1, "all ranks stop behind the same step")
        self.assertEqual(self.cluster.committed_steps(job), [ends[0]["end"]])


class Recovers(PythonCase):
    def test_a_killed_rank_goes_on_from_memory(self):
        job = self.start()
        self.cluster.wait_step(job, 15)
        self.cluster.kill_rank(job, 2)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assert_states()
        for rank in range(4):
            self.assertEqual([note["start"] > 0 for note in self.starts(rank)], [False, True])
            self.assertTrue(self.starts(rank)[1]["restore"].startswith("snapshot:"))

    def test_without_the_memory_it_goes_on_from_the_store(self):
        job = self.start()
        self.cluster.wait_checkpoint(job, 20)
        for node in self.cluster.node_names():
            self.cluster.kill_keeper(node, job)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assert_states()
        restores = {note["restore"].partition(":")[0] for note in self.starts(0)[1:]}
        self.assertIn("checkpoint", restores)

    def test_a_damaged_checkpoint_is_named_and_left_out(self):
        job = self.start(hold_at=25)
        self.cluster.wait_checkpoint(job, 20)
        pack = next(os.path.join(folder, name) for folder, _, names in os.walk(self.cluster.store())
                    for name in names if name == "rank-00001.pack" and os.path.basename(folder).startswith("20."))
        with open(pack, "r+b") as file:
            file.seek(os.path.getsize(pack) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0x10]))
        for node in self.cluster.node_names():
            self.cluster.kill_keeper(node, job)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assert_states()
        damaged = [i for i in self.cluster.incidents(job) if i["fault_class"] == "CORRUPT_CHECKPOINT"]
        self.assertEqual(len(damaged), 1, self.cluster.incidents(job))
        self.assertIn("rank-00001.pack", damaged[0]["detail"])
        self.assertEqual(damaged[0]["restored_from"]["ref"]["step"], "10")


if __name__ == "__main__":
    main()
