#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each fault of this version against jobs of the test rank: named rightly, recovered, equal to the undisturbed run."""
import signal
import time

import processes
from cluster_case import JOB_DEADLINE_S, PERSIST_EVERY, ClusterCase, main
from holdfast_cluster import documents, job_name

FAULT_STEP = 23


class Fault(ClusterCase):
    def start(self, **options):
        job = self.run_job(**options)
        self.cluster.wait_step(job, FAULT_STEP, ranks=4)
        return job

    def finish(self, job, deadline_s=JOB_DEADLINE_S):
        self.cluster.wait_state(job, "DONE", deadline_s)
        self.assert_equal_to_undisturbed(job)
        return self.cluster.describe(job)


class Rank(Fault):
    def recovers(self, signo, fault_class):
        job = self.start()
        before = self.cluster.rank_pids(job)
        self.cluster.kill_rank(job, 2, signo)
        self.cluster.wait_first_step(job, 2, 4)
        status = self.finish(job)
        incident = self.only_incident(job)
        self.assertEqual(incident["fault_class"], fault_class)
        self.assertEqual(incident["ranks"], [2])
        self.assertEqual(incident["rung"], 2)
        self.assertEqual(incident["restored_from"]["source"], "SOURCE_SNAPSHOT")
        self.assertLessEqual(int(incident.get("steps_lost", 0)), 2)
        self.assertEqual(status["restarts"], 1)
        self.assertEqual(processes.wait_gone(list(before.values()), 5), [])

    def test_killed(self):
        self.recovers(signal.SIGKILL, "PROCESS_DIED")

    def test_stopped(self):
        self.recovers(signal.SIGSTOP, "PROCESS_STOPPED")

    def test_stopped_for_a_moment_is_healthy(self):
        job = self.start()
        pid = self.cluster.rank_pids(job)[1]
        processes.send(pid, signal.SIGSTOP)
        # The stop lasts 100 ms of the 300 that are healthy: a duration is what is tested here.
        time.sleep(0.1)
        processes.send(pid, signal.SIGCONT)
        self.assertEqual(self.finish(job).get("restarts", 0), 0)
        self.assertEqual(self.cluster.incidents(job), [])

    def test_exit_with_an_error_in_the_middle(self):
        job = self.run_job(extra=("--exit-code-at", f"{FAULT_STEP}:7"))
        status = self.finish(job)
        self.assertGreaterEqual(status["restarts"], 1)

    def test_killed_twice(self):
        job = self.start()
        self.cluster.kill_rank(job, 0)
        self.cluster.wait_first_step(job, 2, 4)
        self.cluster.kill_rank(job, 3)
        self.cluster.wait_first_step(job, 3, 4)
        self.assertEqual(self.finish(job)["restarts"], 2)
        self.assertEqual([incident["ranks"] for incident in self.cluster.incidents(job)], [[0], [3]])


class Daemons(Fault):
    def test_agent_killed_restarts_no_rank(self):
        job = self.start()
        before = self.cluster.rank_pids(job)
        agent = self.cluster.wait_pid("agent-n1")
        self.cluster.kill_daemon("agent-n1")
        self.cluster.wait_pid("agent-n1", other_than=agent)
        self.cluster.wait_step(job, FAULT_STEP + 5)
        self.assertEqual(self.cluster.rank_pids(job), before)
        self.assertEqual(self.finish(job).get("restarts", 0), 0)

    def test_keeper_killed_takes_its_ranks_and_the_job_recovers(self):
        job = self.start()
        on_n1 = self.cluster.rank_pids(job, "n1")
        self.assertEqual(len(on_n1), 2)
        self.cluster.kill_keeper("n1", job)
        self.assertEqual(processes.wait_gone(list(on_n1.values()), 5), [])
        status = self.finish(job)
        incident = self.only_incident(job)
        self.assertEqual(incident["fault_class"], "PROCESS_DIED")
        self.assertEqual(sorted(incident["ranks"]), sorted(on_n1))
        self.assertEqual(status["restarts"], 1)

    def test_scheduler_killed_disturbs_nothing(self):
        job = self.start()
        before = self.cluster.rank_pids(job)
        scheduler = self.cluster.wait_pid("scheduler")
        self.cluster.kill_daemon("scheduler")
        self.cluster.wait_pid("scheduler", other_than=scheduler)
        self.cluster.wait_step(job, FAULT_STEP + 5)
        self.assertEqual(self.cluster.rank_pids(job), before)
        self.assertEqual(self.finish(job).get("restarts", 0), 0)

    def test_steps_and_saves_go_on_while_the_scheduler_is_down(self):
        job = self.start(step_ms=100)
        before = self.cluster.rank_pids(job)
        self.cluster.hold("scheduler")
        self.cluster.kill_daemon("scheduler")
        down_at = min(recorder.steps_done for recorder in self.cluster.recorders(job).values())
        self.cluster.wait_step(job, down_at + 2 * PERSIST_EVERY + 1)
        self.assertEqual(self.cluster.supervised_pid("scheduler"), 0)
        prepared = self.prepared_steps(job)
        self.assertTrue([step for step in prepared if step > down_at], f"nothing prepared after {down_at}: {prepared}")
        self.assertEqual(self.cluster.rank_pids(job), before)
        self.cluster.release("scheduler")
        self.assertEqual(self.finish(job).get("restarts", 0), 0)

    def prepared_steps(self, job):
        """Steps with a rank manifest in the store, by holdfast-ckpt from the files alone."""
        result = self.cluster.tool("holdfast-ckpt", "ls", "--store", self.cluster.store(), "--json")
        self.assertEqual(result.code, 0, result.err)
        return sorted(step for name, step in listed_steps(result.out) if name == job_name(job))

    def test_everything_at_once(self):
        job = self.start()
        self.cluster.kill_daemon("scheduler")
        self.cluster.kill_daemon("agent-n0")
        self.cluster.kill_rank(job, 3)
        self.cluster.wait_first_step(job, 2, 4)
        self.assertEqual(self.finish(job)["restarts"], 1)


def listed_steps(text):
    """(job, step) of every line of `holdfast-ckpt ls --json`."""
    for row in documents(text):
        for entry in row.get("checkpoints", [row]):
            yield str(entry["job"]), int(entry["step"])


class NodeLost(Fault):
    NODES = 3

    def test_a_spare_node_takes_over(self):
        job = self.start()
        placed = [node["node"] for node in self.cluster.describe(job)["placement"]["nodes"]]
        lost = placed[1]
        self.cluster.kill_node(lost)
        self.cluster.wait_first_step(job, 2, 4)
        status = self.finish(job)
        incident = self.only_incident(job)
        self.assertEqual(incident["fault_class"], "NODE_LOST")
        self.assertEqual(incident["node"], lost)
        self.assertEqual(incident["rung"], 3)
        self.assertNotIn(lost, [node["node"] for node in status["placement"]["nodes"]])
        self.cluster.release(f"agent-{lost}")
        self.cluster.wait_event(lambda e: e.get("kind") == "node.ready" and e.get("node") == lost, 30, f"{lost} ready")


class NodeReturns(Fault):
    def test_a_job_without_spare_waits_for_its_node(self):
        job = self.start()
        self.cluster.kill_node("n1")
        self.cluster.wait_event(lambda e: e.get("kind") == "node.lost" and e.get("node") == "n1", 30, "n1 lost")
        self.cluster.release("agent-n1")
        self.cluster.wait_first_step(job, 2, 4)
        self.finish(job)


if __name__ == "__main__":
    main()
