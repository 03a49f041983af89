#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each fault of this version against jobs of the test rank: named rightly, recovered, equal to the undisturbed run."""
import signal
import time

import processes
from cluster_case import JOB_DEADLINE_S, PERSIST_EVERY, STEPS, ClusterCase, main
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


    def recovered_within(self, job, fault_at, limit_s, attempt=2):
        """All ranks of `attempt` have finished a step within `limit_s` of the fault (on an idle machine far sooner)."""
        took_s = self.cluster.wait_first_step(job, attempt, 4) - fault_at
        self.assertLess(took_s, limit_s * processes.PATIENCE)

    def assert_incident(self, job, fault_class, ranks, steps_lost_max):
        """One restart on the same nodes from memory, of the right cause, and what was lost by the step log itself."""
        incident = self.only_incident(job)
        self.assertEqual(incident["fault_class"], fault_class)
        self.assertEqual(incident["ranks"], ranks)
        self.assertEqual(incident["rung"], 2)
        self.assertEqual(incident["restored_from"]["source"], "SOURCE_SNAPSHOT")
        rows = self.cluster.steps(job)
        redone = len(rows) - len({row["step"] for row in rows})
        self.assertLessEqual(redone, steps_lost_max)
        self.assertLessEqual(redone, int(incident.get("steps_lost", 0)))


class Rank(Fault):
    def recovers(self, signo, fault_class, limit_s):
        job = self.start()
        before = self.cluster.rank_pids(job)
        self.recovered_within(job, self.cluster.kill_rank(job, 2, signo), limit_s)
        status = self.finish(job)
        self.assert_incident(job, fault_class, [2], steps_lost_max=PERSIST_EVERY)
        self.assertEqual(status["restarts"], 1)
        self.assertEqual(processes.wait_gone(list(before.values()), 5), [])

    def test_killed(self):
        self.recovers(signal.SIGKILL, "PROCESS_DIED", limit_s=3)

    def test_crashed(self):
        self.recovers(signal.SIGSEGV, "PROCESS_DIED", limit_s=3)

    def test_aborted(self):
        self.recovers(signal.SIGABRT, "PROCESS_DIED", limit_s=3)

    def test_stopped(self):
        self.recovers(signal.SIGSTOP, "PROCESS_STOPPED", limit_s=5)

    def test_stopped_for_a_moment_is_healthy(self):
        job = self.start()
        pid = self.cluster.rank_pids(job)[1]
        processes.send(pid, signal.SIGSTOP)
        # The stop lasts 100 ms of the 300 that are healthy: a duration is what is tested here.
        time.sleep(0.1)
        processes.send(pid, signal.SIGCONT)
        self.assertEqual(self.finish(job).get("restarts", 0), 0)
        self.assertEqual(self.cluster.incidents(job), [])

    def exits_in_the_middle(self, code):
        job = self.run_job(extra=("--exit-code-at", f"{FAULT_STEP}:{code}", "--fault-rank", 1))
        status = self.finish(job)
        self.assertEqual(status["restarts"], 1)
        self.assert_incident(job, "PROCESS_DIED", [1], steps_lost_max=PERSIST_EVERY)

    def test_exit_with_an_error_in_the_middle(self):
        self.exits_in_the_middle(7)

    def test_exit_with_zero_in_the_middle(self):
        self.exits_in_the_middle(0)

    def test_the_same_crash_again_ends_the_job(self):
        job = self.run_job(extra=("--exit-code-at", f"{FAULT_STEP}:7", "--fault-attempt", 0))
        self.cluster.wait_state(job, "FAILED", JOB_DEADLINE_S)
        status = self.cluster.describe(job)
        self.assertIn("user program", status["reason"])
        self.assertEqual(status["restarts"], 1)
        self.assertEqual(self.cluster.incidents(job)[-1]["fault_class"], "USER_PROGRAM")

    def test_a_run_that_leaves_an_update_out_is_unequal(self):
        """The negative control of every comparison here."""
        job = self.run_job(extra=("--skip-update-at", FAULT_STEP))
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)
        self.assertEqual(self.cluster.incidents(job), [])
        with self.assertRaises(AssertionError):
            self.assert_equal_to_undisturbed(job)
        reference = self.run_job("again")
        self.cluster.wait_state(reference, "DONE", JOB_DEADLINE_S)
        self.assertNotEqual(self.cluster.digest(job, STEPS), self.cluster.digest(reference, STEPS))

    def test_killed_twice(self):
        job = self.start()
        self.cluster.kill_rank(job, 0)
        self.cluster.wait_first_step(job, 2, 4)
        self.cluster.kill_rank(job, 3)
        self.cluster.wait_first_step(job, 3, 4)
        self.assertEqual(self.finish(job)["restarts"], 2)
        self.assertEqual([incident["ranks"] for incident in self.cluster.incidents(job)], [[0], [3]])


class Daemons(Fault):
    def replace_agent(self, job, signo):
        """Ends the agent of n1 by a signal: `up` starts another one, and no rank notices."""
        before = self.cluster.rank_pids(job)
        agent = self.cluster.wait_pid("agent-n1")
        self.cluster.kill_daemon("agent-n1", signo)
        self.cluster.wait_pid("agent-n1", other_than=agent)
        self.cluster.wait_event(lambda event: event.get("kind", "").startswith("agent."), 30, "a new agent")
        self.assertEqual(self.cluster.rank_pids(job), before)
        self.assertEqual(self.finish(job).get("restarts", 0), 0)

    def test_agent_killed_restarts_no_rank(self):
        job = self.start(step_ms=100)
        self.replace_agent(job, signal.SIGKILL)
        incident = self.only_incident(job)
        self.assertEqual((incident["fault_class"], incident["node"]), ("AGENT_DIED", "n1"))
        self.assertFalse(incident.get("acted", False))

    def test_a_frozen_agent_is_replaced_and_restarts_no_rank(self):
        job = self.start(step_ms=100)
        self.replace_agent(job, signal.SIGSTOP)
        self.assertEqual(self.only_incident(job)["fault_class"], "AGENT_DIED")

    def test_agent_stopped_in_order_is_no_incident(self):
        job = self.start(step_ms=100)
        self.replace_agent(job, signal.SIGTERM)
        self.assertEqual(self.cluster.incidents(job), [])

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
        self.recovered_within(job, self.cluster.kill_node(lost), 12)
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
        self.assertEqual(self.finish(job)["restarts"], 1)
        incident = self.only_incident(job)
        self.assertEqual((incident["fault_class"], incident["node"], incident["rung"]), ("NODE_LOST", "n1", 5))


class Witness(Fault):
    """fence: witness with a scheduler, agents and keepers: what a cut node ran is gone before it runs elsewhere."""

    NODES = 4
    FENCE_MS = 3000

    def test_the_next_attempt_starts_when_the_ranks_of_the_old_one_are_gone(self):
        # The node's agent dies and stays away; its keeper and ranks go on, as those of a node that is cut off.
        job = self.start(fence="witness", fence_ms=self.FENCE_MS, steps=3000)
        lost = self.cluster.describe(job)["placement"]["nodes"][1]["node"]
        there = list(self.cluster.rank_pids(job, lost).values())
        self.assertEqual(len(there), 2)
        self.cluster.hold(f"agent-{lost}")
        self.cluster.kill_daemon(f"agent-{lost}")

        def started_elsewhere():
            alive = [pid for pid in there if processes.alive(pid)]
            if int(self.cluster.describe(job)["attempt"]) > 1 and self.cluster.job_state(job) == "STARTING":
                self.assertEqual(alive, [], "two attempts of the job run")
            return int(self.cluster.describe(job)["attempt"]) > 1 and self.cluster.job_state(job) == "RUNNING"

        processes.wait_until(started_elsewhere, 60, lambda: self.cluster.evidence(job), 0.1)
        self.assertEqual([pid for pid in there if processes.alive(pid)], [])
        nodes = [node["node"] for node in self.cluster.describe(job)["placement"]["nodes"]]
        self.assertNotIn(lost, nodes)
        self.assertEqual(self.cluster.incidents(job)[0]["fault_class"], "NODE_LOST")
        self.cluster.cli("cancel", f"j-{job}")
        self.cluster.wait_state(job, "CANCELLED", 60)


if __name__ == "__main__":
    main()
