#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One job killed many times in a row at seeded random moments: every time equal to the undisturbed run.

The short form kills three times; the long one (scripts/test --long endurance) 20 times, jobs of the native trainer
where LibTorch is built. HOLDFAST_SEED chooses other moments.
"""
import os
import random
import signal
import time

import processes
from cluster_case import ClusterCase, Undisturbed, main, native_job, test_rank_job

SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
LONG = os.environ.get("HOLDFAST_LONG") == "1"
KILLS = 20 if LONG else 3
STEPS_BETWEEN = (3, 25)  # finished steps between a recovery and the next fault
STEPS = KILLS * 40 + 60
AWAY_S = 60 if LONG else 5
AWAY_STEPS = AWAY_S * 60  # no job here finishes 50 steps a second
PERSIST_EVERY = 10
DEADLINE_S = 1800 if LONG else 180

def make_job(cluster, name, steps):
    """A job of the native trainer in the long form, where it is built; else of the test rank."""
    if not LONG or not os.path.exists(os.path.join(cluster.binaries, "holdfast-worker")):
        return test_rank_job(cluster, name, steps=steps, persist_every_steps=PERSIST_EVERY)
    return native_job(cluster, name, steps, persist_every_steps=PERSIST_EVERY, restarts_max=100)


class Endurance(ClusterCase):
    STEPS = STEPS

    def setUp(self):
        super().setUp()
        self.choice = random.Random(f"{SEED} {self.id()}")
        self.job = self.cluster.submit(make_job(self.cluster, "endurance", self.STEPS))

    def kill_many(self, kill, restarts):
        """KILLS times: some steps, then `kill()`; `restarts` says whether each makes a new attempt."""
        attempt = 1
        self.cluster.wait_step(self.job, 2, 120, ranks=4)
        for number in range(KILLS):
            done = min(recorder.steps_done for recorder in self.cluster.recorders(self.job).values())
            self.cluster.wait_step(self.job, done + self.choice.randint(*STEPS_BETWEEN), 120, ranks=4)
            before = self.cluster.rank_pids(self.job)
            kill()
            if restarts:
                attempt += 1
                self.cluster.wait_first_step(self.job, attempt, 4, 120)
            else:
                self.assertEqual(self.cluster.rank_pids(self.job), before, f"kill {number} restarted a rank")
        self.cluster.wait_state(self.job, "DONE", DEADLINE_S)
        self.assert_equal(attempt)

    def assert_equal(self, attempts):
        self.assert_equal_to(self.job, self.STEPS, Undisturbed.get(
            "endurance", lambda cluster: make_job(cluster, "undisturbed", self.STEPS), self.STEPS, DEADLINE_S))
        told = [f"{i['fault_class']} {i.get('ranks')} {i['what']}" for i in self.cluster.incidents(self.job)]
        self.assertEqual(int(self.cluster.describe(self.job)["attempt"]), attempts, "\n".join(told))

    def daemon_killed(self, name):
        pid = self.cluster.wait_pid(name)
        self.cluster.kill_daemon(name)
        self.cluster.wait_pid(name, other_than=pid)


class RankKilled(Endurance):
    def test_rank(self):
        self.kill_many(lambda: self.cluster.kill_rank(self.job, self.choice.randrange(4)), restarts=True)


class AgentKilled(Endurance):
    def test_agent(self):
        self.kill_many(lambda: self.daemon_killed(f"agent-n{self.choice.randrange(2)}"), restarts=False)


class KeeperKilled(Endurance):
    def test_keeper(self):
        self.kill_many(lambda: self.cluster.kill_keeper(f"n{self.choice.randrange(2)}", self.job), restarts=True)


class SchedulerKilled(Endurance):
    def test_scheduler(self):
        self.kill_many(lambda: self.daemon_killed("scheduler"), restarts=False)


class NodeKilled(Endurance):
    def test_node(self):
        """Agent, keeper and ranks of a node; the agent returns by `up` and the job starts there again: at once, or
        (every other time) after the node has been given up for lost."""
        def kill():
            node = f"n{self.choice.randrange(2)}"
            seen = self.cluster.last_sequence()
            self.cluster.kill_node(node)
            if self.choice.random() < 0.5:
                self.cluster.wait_event(lambda e: e.get("kind") == "node.lost" and e.get("node") == node, 60,
                                        f"{node} lost", after=seen)
            self.cluster.release(f"agent-{node}")

        self.kill_many(kill, restarts=True)


class SchedulerAway(Endurance):
    """A scheduler that is down, or whose host is silent, disturbs no rank and stops no save."""

    STEPS = AWAY_STEPS

    def away(self, signal_name):
        self.cluster.wait_step(self.job, 5, 120, ranks=4)
        before = self.cluster.rank_pids(self.job)
        self.assertEqual(len(before), 4)
        self.cluster.hold("scheduler")
        pid = self.cluster.wait_pid("scheduler")
        processes.send(pid, getattr(signal, signal_name))
        saved = self.manifests()
        time.sleep(AWAY_S)  # the duration is what is tested
        self.assertEqual(self.cluster.rank_pids(self.job), before, "a rank ended or was started again")
        self.assertGreater(len(self.manifests()), len(saved))
        processes.send(pid, signal.SIGCONT)
        self.cluster.release("scheduler")
        self.cluster.wait_state(self.job, "DONE", DEADLINE_S)
        self.assert_equal(1)

    def manifests(self):
        return [name for folder, _, names in os.walk(self.cluster.store()) for name in names if "manifest" in name]

    def test_down(self):
        self.away("SIGKILL")

    def test_silent(self):
        self.away("SIGSTOP")


if __name__ == "__main__":
    main()
