#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from the user's side: listed, verified, flipped bytes found, asked for, started from."""
import os

import processes
from cluster_case import JOB_DEADLINE_S, PERSIST_EVERY, STEPS, ClusterCase, main, test_rank_job
from holdfast_cluster import job_name


class Checkpoints(ClusterCase):
    def ckpt(self, verb, *arguments):
        return self.cluster.tool("holdfast-ckpt", verb, "--store", self.cluster.store(), *arguments)

    def test_listed_shown_and_verified(self):
        job = self.run_job()
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        steps = self.cluster.committed_steps(job)
        self.assertIn(STEPS, steps)
        self.assertTrue(all(step % PERSIST_EVERY == 0 for step in steps), steps)
        self.assertEqual(self.ckpt("verify").code, 0)
        shown = self.ckpt("show", f"j-{job}@{STEPS}")
        self.assertEqual(shown.code, 0, shown.err)
        self.assertIn(str(STEPS), shown.out)
        self.assertEqual(self.ckpt("show", f"j-{job}@{STEPS + 1}").code, 3)

    def test_a_flipped_byte_is_named_by_file_and_offset(self):
        job = self.run_job()
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        path, offset = self.largest_file(), 4096 * 3 + 17
        with open(path, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))
        result = self.ckpt("verify")
        self.assertEqual(result.code, 1, result.out + result.err)
        text = result.out + result.err
        self.assertIn(os.path.basename(path), text)
        self.assertRegex(text, r"offset \d+")
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(bytes([byte]))
        self.assertEqual(self.ckpt("verify").code, 0)

    def test_a_damaged_newest_checkpoint_is_left_out(self):
        """Memory is lost and the newest checkpoint has a flipped byte: named, and recovered from the one before."""
        job = self.run_job(step_ms=200, persist_every_steps=10)
        self.cluster.wait_checkpoint(job, 20)
        for path in self.packs(job, 20):
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 0x10]))
        for node in self.cluster.node_names():
            self.cluster.kill_keeper(node, job)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assert_equal_to_undisturbed(job)
        incidents = self.cluster.incidents(job)
        damaged = [incident for incident in incidents if incident["fault_class"] == "CORRUPT_CHECKPOINT"]
        self.assertEqual(len(damaged), 1, incidents)
        self.assertEqual(damaged[0]["restored_from"]["ref"]["step"], "10")
        self.assertRegex(damaged[0]["detail"], r"rank-0000\d\.pack.*offset \d+")

    def packs(self, job, step):
        """The pack files of one checkpoint."""
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.cluster.store())
                 for name in names if name.endswith(".pack")
                 and os.path.basename(folder).split(".")[0] == str(step)]
        self.assertTrue(found, f"no pack of step {step}")
        return found

    def largest_file(self):
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(self.cluster.store()) for name in names]
        return max(paths, key=os.path.getsize)

    def test_save_now(self):
        job = self.run_job(steps=2000, persist_every_steps=1000)
        self.cluster.wait_step(job, 5)
        self.cluster.cli("save", job_name(job))
        committed = processes.wait_until(lambda: self.cluster.committed_steps(job), 30,
                                         "a checkpoint that was asked for", 0.1)
        self.assertLess(committed[0], 1000)
        self.cluster.cli("cancel", job_name(job))
        self.cluster.wait_state(job, "CANCELLED", 30)

    def test_start_from_another_jobs_checkpoint(self):
        first = self.run_job("first", steps=STEPS)
        self.cluster.wait_state(first, "DONE", JOB_DEADLINE_S)
        spec = test_rank_job(self.cluster, "second", steps=STEPS)
        second = self.cluster.submit(spec, arguments=("--from", f"j-{first}@{STEPS // 2}"))
        self.cluster.wait_state(second, "DONE", JOB_DEADLINE_S)
        self.assertEqual(self.cluster.steps(second)[0]["step"], STEPS // 2 + 1)
        self.assertEqual(self.cluster.digest(second, STEPS), self.cluster.digest(first, STEPS))

    def test_start_from_nothing_is_refused(self):
        spec = test_rank_job(self.cluster, "second")
        result = self.cluster.submit(spec, expect=None, arguments=("--from", "j-77@30"))
        self.assertIn(result.code, (3, 4))
        self.assertIn("j-77@30", result.err)


if __name__ == "__main__":
    main()
