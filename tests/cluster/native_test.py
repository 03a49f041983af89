#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The native trainer in a whole cluster, DP2 x TP2 on two nodes: killed, recovered, equal bit for bit; from the store
as well as from memory; and a run that leaves one micro-batch out is reported unequal.
"""
import json
import os
import signal

from cluster_case import ClusterCase, Undisturbed, main, native_job
from holdfast_cluster import final_losses

STEPS = 40
FAULT_STEP = 17
DEADLINE_S = 180


class Native(ClusterCase):
    def reference(self):
        return Undisturbed.get("native", lambda cluster: native_job(cluster, "undisturbed", STEPS), STEPS, DEADLINE_S)

    def run_with(self, fault, incidents):
        """A job that meets `fault(job)` after FAULT_STEP and ends equal to the undisturbed one."""
        job = self.cluster.submit(native_job(self.cluster, "native", STEPS))
        self.cluster.wait_step(job, FAULT_STEP, DEADLINE_S, ranks=4)
        fault(job)
        self.cluster.wait_state(job, "DONE", DEADLINE_S)
        self.assert_equal_to(job, STEPS, self.reference())
        found = self.cluster.incidents(job)
        self.assertEqual(len(found), incidents, found)
        return found[0]

    def test_a_killed_rank(self):
        incident = self.run_with(lambda job: self.cluster.kill_rank(job, 3, signal.SIGKILL), 1)
        self.assertEqual((incident["fault_class"], incident["ranks"]), ("PROCESS_DIED", [3]))
        self.assertEqual(incident["restored_from"]["source"], "SOURCE_SNAPSHOT")

    def test_a_stopped_rank(self):
        incident = self.run_with(lambda job: self.cluster.kill_rank(job, 0, signal.SIGSTOP), 1)
        self.assertEqual((incident["fault_class"], incident["ranks"]), ("PROCESS_STOPPED", [0]))

    def test_a_killed_keeper(self):
        """Half of the memory is gone: from the store."""
        incident = self.run_with(lambda job: self.cluster.kill_keeper("n1", job), 1)
        self.assertEqual(incident["restored_from"]["source"], "SOURCE_CHECKPOINT")

    def test_a_micro_batch_left_out_is_seen(self):
        path = os.path.join(self.directory, "fault.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"drop_micro_batch": {"step": 5, "rank": 0}}, file)
        job = self.cluster.submit(native_job(self.cluster, "control", STEPS, environment={"HOLDFAST_FAULT_FILE": path}))
        self.cluster.wait_state(job, "DONE", DEADLINE_S)
        digest, losses = self.reference()
        rows = self.cluster.steps(job)
        self.assertNotEqual(self.cluster.digest(job, STEPS), digest)
        self.assertEqual({step: loss for step, loss in final_losses(rows).items() if step < 5},
                         {step: loss for step, loss in losses.items() if step < 5})
        self.assertNotEqual(final_losses(rows), losses)

    def test_a_checkpoint_of_another_model_is_refused(self):
        first = self.cluster.submit(native_job(self.cluster, "first", STEPS))
        self.cluster.wait_state(first, "DONE", DEADLINE_S)
        spec = native_job(self.cluster, "second", STEPS, model={"ffn": 256})
        second = self.cluster.submit(spec, arguments=("--from", f"j-{first}@{STEPS}"))
        self.cluster.wait_state(second, "FAILED", DEADLINE_S)
        status = self.cluster.describe(second)
        self.assertIn("is of another model", status["reason"] + status.get("last_stderr", ""))
        self.assertIn("ffn", status["reason"] + status.get("last_stderr", ""))


if __name__ == "__main__":
    main()
