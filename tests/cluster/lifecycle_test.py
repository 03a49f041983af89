#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs without faults of ours: they end, wait, are cancelled, run beside each other, and fail as their program does."""
import json
import os
import signal

import processes
from cluster_case import JOB_DEADLINE_S, STEPS, ClusterCase, main, test_rank_job
from holdfast_cluster import step_gaps


class Done(ClusterCase):
    def test_four_ranks_on_two_nodes_end_with_a_checkpoint(self):
        job = self.run_job()
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assertEqual(step_gaps(self.cluster.steps(job), STEPS), [])
        status = self.cluster.describe(job)
        self.assertEqual(int(status["newest_checkpoint"]["step"]), STEPS)
        self.assertEqual(status.get("restarts", 0), 0)
        self.assertEqual(status.get("incidents", []), [])
        verified = self.cluster.tool("holdfast-ckpt", "verify", "--store", self.cluster.store())
        self.assertEqual(verified.code, 0, verified.out + verified.err)
        self.assertRegex(self.cluster.digest(job, STEPS), r"^[0-9a-f]{32}$")
        self.assertEqual(self.cluster.rank_pids(job), {})

    def test_two_jobs_at_once_do_not_disturb_each_other(self):
        first = self.run_job("first", nodes=1, gpus_per_node=2)
        second = self.run_job("second", nodes=1, gpus_per_node=2)
        self.cluster.wait_step(first, 3)
        self.cluster.wait_step(second, 3)
        self.assertEqual(sorted(self.cluster.rank_pids(first)), [0, 1])
        self.assertEqual(sorted(self.cluster.rank_pids(second)), [0, 1])
        self.cluster.kill_rank(first, 1)
        self.cluster.wait_state(first, "DONE", JOB_DEADLINE_S)
        self.cluster.wait_state(second, "DONE", JOB_DEADLINE_S)
        self.assertEqual(self.cluster.digest(first, STEPS), self.cluster.digest(second, STEPS))
        self.assertEqual(self.cluster.incidents(second), [])

    def test_ps_and_logs_know_the_job(self):
        job = self.run_job("named")
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assertIn("named", self.cluster.cli("ps", "--all").out)
        self.assertEqual(self.cluster.cli("describe", "named").code, 0)
        self.cluster.cli("describe", "j-999", expect=3)
        of_rank_0 = ("logs", f"j-{job}", "--rank", "0")
        everything = self.cluster.cli(*of_rank_0).out
        self.assertIn("starts after step 0", everything)
        self.assertEqual(self.cluster.cli(*of_rank_0, "--since", "1h").out, everything)
        # The agent marks the time of the last bytes within a beat.
        processes.wait_until(lambda: self.cluster.cli(*of_rank_0, "--since", "0s").out == "", 10, "nothing since now")


class Cancel(ClusterCase):
    def test_cancelled_job_leaves_no_rank(self):
        job = self.run_job(steps=100000)
        self.cluster.wait_step(job, 3)
        pids = list(self.cluster.rank_pids(job).values())
        self.assertEqual(len(pids), 4)
        self.cluster.cli("cancel", f"j-{job}")
        self.cluster.wait_state(job, "CANCELLED", 30)
        self.assertEqual(processes.wait_gone(pids, 15), [])

    def test_a_rank_that_ignores_term_is_killed(self):
        script = "trap '' TERM; while :; do read -t 1 < /dev/zero; done"
        job = self.run_job(nodes=1, gpus_per_node=1, snapshot_every_steps=None, persist_every_steps=None,
                           expects_checkpoints=None, command=["/bin/bash", "-c", script])
        pid = processes.wait_until(lambda: self.cluster.rank_pids(job).get(0), 30, "rank 0")
        self.cluster.cli("cancel", f"j-{job}")
        self.cluster.wait_state(job, "CANCELLED", 30)
        self.assertEqual(processes.wait_gone([pid], 5), [])


class Waiting(ClusterCase):
    def test_more_gpus_than_exist_wait_and_say_what_fits(self):
        job = self.run_job("big", nodes=2, gpus_per_node=8)
        self.cluster.wait_state(job, "QUEUED", 20)
        status = self.cluster.describe(job)
        self.assertRegex(status["reason"], r"8")
        self.assertRegex(status["reason"], r"\b2\b")
        self.cluster.cli("cancel", f"j-{job}")
        self.cluster.wait_state(job, "CANCELLED", 20)

    def test_a_job_waits_for_another_to_end(self):
        first = self.run_job("first")
        self.cluster.wait_state(first, ("RUNNING",), 30)
        second = self.run_job("second")
        self.assertEqual(self.cluster.job_state(second), "QUEUED")
        self.cluster.wait_state(first, "DONE", JOB_DEADLINE_S)
        self.cluster.wait_state(second, "DONE", JOB_DEADLINE_S)

    def test_a_device_that_turns_bad_is_not_used(self):
        path = os.path.join(self.cluster.state, "nodes", "n0", "devices.json")
        with open(path, encoding="utf-8") as file:
            devices = json.load(file)
        devices["devices"][1].update(healthy=False, reason="test")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(devices, file)
        os.replace(path + ".new", path)
        processes.wait_until(
            lambda: any(node["name"] == "n0" and not all(d.get("healthy") for d in node["devices"])
                        for node in self.cluster.node_list()), 20, "an unhealthy device of n0")
        job = self.run_job("needs-all")
        self.cluster.wait_state(job, "QUEUED", 20)
        fits = self.run_job("fits", nodes=1, gpus_per_node=2)
        self.cluster.wait_state(fits, "DONE", JOB_DEADLINE_S)
        self.assertEqual([node["node"] for node in self.cluster.describe(fits)["placement"]["nodes"]], ["n1"])


class UserProgram(ClusterCase):
    def test_failing_program_gets_one_retry_then_fails_with_its_last_words(self):
        command = ["/bin/sh", "-c", "echo first line >&2; echo the reason why >&2; exit 3"]
        job = self.run_job(nodes=1, gpus_per_node=1, snapshot_every_steps=None, persist_every_steps=None,
                           expects_checkpoints=None, command=command)
        self.cluster.wait_state(job, "FAILED", 60)
        status = self.cluster.describe(job)
        self.assertIn("the reason why", status.get("last_stderr", ""))
        self.assertEqual(status.get("restarts", 0), 1)
        self.assertEqual(status.get("exit_code"), 3)
        self.assertEqual(status["incidents"][-1]["fault_class"], "USER_PROGRAM")
        self.assertIn("the reason why", self.cluster.cli("describe", f"j-{job}").out)

    def test_wait_gives_the_jobs_end_as_exit_code(self):
        spec = test_rank_job(self.cluster, "waited", steps=5)
        self.cluster.submit(spec, arguments=("--wait",))
        spec = test_rank_job(self.cluster, "failing", nodes=1, gpus_per_node=1, snapshot_every_steps=None,
                             persist_every_steps=None, expects_checkpoints=None, command=["/bin/false"])
        self.cluster.submit(spec, expect=1, arguments=("--wait",))

    def test_signal_from_the_keyboard_does_not_reach_ranks(self):
        job = self.run_job()
        self.cluster.wait_step(job, 2)
        pids = self.cluster.rank_pids(job)
        self.cluster.kill_daemon("agent-n0", signal.SIGINT)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assertEqual(len(pids), 4)
        self.assertEqual(self.cluster.describe(job).get("restarts", 0), 0)


if __name__ == "__main__":
    main()
