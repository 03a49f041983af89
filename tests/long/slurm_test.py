#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`holdfast run` inside the sbatch file of a real Slurm: three nodes on this machine, the job on two or three of them.

Needs root, slurm-wlm and munge (installed when missing). What Slurm itself knows is asked of Slurm: states, exit codes,
and which processes belong to a step.
"""
import os
import shutil
import signal
import sys
import tempfile
import unittest

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cluster"))

import processes  # noqa: E402
import slurm_lab  # noqa: E402
from holdfast_cluster import json_lines  # noqa: E402

HOLDFAST = os.path.join(os.environ["HOLDFAST_BUILD_DIR"], "bin", "holdfast")
RANK = os.path.join(SOURCE, "tests", "cluster", "store_rank.py")
STEP_S = 300  # to a rank's step: Slurm itself holds a requeued job back for two minutes
END_S = 180   # to a job's end
WHY_NOT = slurm_lab.missing()

BATCH = """#!/bin/bash
#SBATCH --job-name {name}
#SBATCH --nodes {nodes}
#SBATCH --ntasks-per-node 1
#SBATCH --requeue
#SBATCH --open-mode append
#SBATCH {more}
export PYTHON_EXEC={python} TMPDIR={directory}
srun --kill-on-bad-exit=0 {holdfast} run {flags} --nproc-per-node 2 {rank} {directory} {arguments}
"""


@unittest.skipIf(WHY_NOT, WHY_NOT)
class SlurmCase(unittest.TestCase):
    slurm = None

    @classmethod
    def setUpClass(cls):
        cls.lab_directory = tempfile.mkdtemp(prefix="hf_slurm_", dir="/tmp")
        cls.slurm = slurm_lab.Slurm(cls.lab_directory)
        cls.addClassCleanup(shutil.rmtree, cls.lab_directory, ignore_errors=True)
        cls.addClassCleanup(cls.slurm.stop)
        cls.slurm.start()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="hf_", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.addCleanup(self.end_job)
        self.job = 0

    def end_job(self):
        if self.job and self.slurm.state(self.job) in ("RUNNING", "PENDING", "COMPLETING"):
            self.slurm.run("scancel", "--signal", "KILL", "--full", self.job)
            self.slurm.run("scancel", self.job)
        processes.kill_all(processes.of_directory(self.directory))

    def submit(self, *arguments, nodes=2, flags="", more="--time 30"):
        script = os.path.join(self.directory, "job.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write(BATCH.format(name=self._testMethodName[:20], nodes=nodes, more=more, flags=flags,
                                    python=sys.executable, holdfast=HOLDFAST, rank=RANK, directory=self.directory,
                                    arguments=" ".join(map(str, arguments))))
        self.job = self.slurm.submit(script, self.directory)
        return self.job

    def output(self):
        path = os.path.join(self.directory, f"slurm-{self.job}.out")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def notes(self):
        return json_lines(os.path.join(self.directory, "log"))

    def wait_step(self, step, attempt=0, after=0, ranks=4):
        """Until each rank has finished `step` in `attempt`, of the notes behind the first `after`: {rank: pid}."""
        def reached():
            mine = [n for n in self.notes()[after:] if n["attempt"] == attempt and n.get("step", 0) >= step]
            return {n["rank"]: n["pid"] for n in mine} if len({n["rank"] for n in mine}) == ranks else None
        return processes.wait_until(reached, STEP_S, lambda: f"step {step} of attempt {attempt}:\n{self.output()}")

    def wait_end(self):
        """Slurm's own last word: (state, exit code as it shows it)."""
        def ended():
            shown = self.slurm.show(self.job)
            state = shown.get("JobState", "")
            return shown if state not in ("RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "") else None
        shown = processes.wait_until(ended, END_S, lambda: f"end of the job:\n{self.output()}\n{self.slurm.logs()}")
        return shown["JobState"], shown["ExitCode"]

    def node_pids(self, pid):
        """All processes of the task to which `pid` belongs: what dies with its node. And the task's own."""
        chain = [one for one in processes.ancestors(pid) if "run" in processes.command_line(one)[1:2]]
        task = next(one for one in chain if processes.command_line(one)[0] == HOLDFAST
                    and processes.command_line(processes.parent(one))[0] != HOLDFAST)
        return [one for one in processes.all_pids() if task in processes.ancestors(one)], task

    def assert_nothing_left(self):
        left = [pid for pid in processes.of_directory(self.directory) if "job.sh" not in processes.describe(pid)]
        self.assertEqual([processes.describe(pid) for pid in processes.wait_gone(left, 30)], [])


class Life(SlurmCase):
    def test_one_changed_line_runs_the_job_to_its_end(self):
        self.submit(100)
        pids = self.wait_step(5)
        known = self.slurm.pids(self.job)
        homes = {rank: [node for node, listed in known.items() if pid in listed] for rank, pid in pids.items()}
        self.assertEqual([len(homes[rank]) for rank in range(4)], [1] * 4, "Slurm lists every rank once")
        self.assertEqual([homes[0], homes[2]], [homes[1], homes[3]])
        self.assertNotEqual(homes[0], homes[2])
        listed = set().union(*known.values())
        ours = [pid for pid in processes.of_directory(self.directory)]
        self.assertEqual([processes.describe(pid) for pid in ours if pid not in listed], [],
                         "a process has left the step")
        self.assertGreaterEqual(len(ours), 4 + 2 * 4)
        self.assertIn(str(self.job), self.slurm.output("squeue", "-h", "-o", "%i"))
        self.assertEqual(self.wait_end(), ("COMPLETED", "0:0"), self.output())
        for rank in range(4):
            self.assertEqual(self.output().count(f"{rank}| rank {rank} is done\n"), 1, self.output())
        self.assert_nothing_left()

    def test_a_killed_rank_is_recovered(self):
        self.submit(100)
        os.kill(self.wait_step(5)[2], signal.SIGKILL)
        self.wait_step(5, attempt=1)
        self.assertEqual(self.wait_end(), ("COMPLETED", "0:0"), self.output())
        self.assertRegex(self.output(), r"holdfast: rank 2 on n\d ended with signal 9")
        self.assert_nothing_left()

    def test_a_failed_job_fails_in_slurm(self):
        self.submit(10, "raise-at-import")
        self.assertEqual(self.wait_end(), ("FAILED", "1:0"), self.output())
        self.assert_nothing_left()


class NodeLost(SlurmCase):
    def test_a_spare_node_takes_the_place_of_a_lost_one(self):
        self.submit(1500, nodes=3, flags="--nnodes 2 --fence-after 2s")
        pids = self.wait_step(5)
        victims, task = self.node_pids(pids[2])
        self.assertNotIn(pids[0], victims)
        processes.kill_all(victims)
        again = self.wait_step(5, attempt=1)
        new_home = self.node_pids(again[2])[1]
        self.assertNotEqual(new_home, task)
        self.wait_end()
        self.assertIn("holdfast: DONE", self.output())
        self.assertEqual(self.output().count("is done\n"), 4)
        self.assert_nothing_left()

    def test_without_a_spare_the_job_is_requeued(self):
        self.submit(1500, flags="--fence-after 2s")
        pids = self.wait_step(5)
        processes.kill_all(self.node_pids(pids[2])[0])
        before = len(self.notes())  # of the lost ranks there will be no other
        self.wait_step(5, after=before)
        self.assertIn("asking Slurm to requeue", self.output())
        self.assertEqual(self.slurm.show(self.job)["Restarts"], "1")
        self.slurm.run("scancel", self.job)
        self.wait_end()
        self.assert_nothing_left()

    def test_the_loss_of_the_first_node_requeues_the_job(self):
        self.submit(1500)
        pids = self.wait_step(5)
        processes.kill_all(self.node_pids(pids[0])[0])
        before = len(self.notes())  # of the lost ranks there will be no other
        self.wait_step(5, after=before)
        self.assertIn("its node is lost", self.output())
        self.assertEqual(self.slurm.show(self.job)["Restarts"], "1")
        self.slurm.run("scancel", self.job)
        self.wait_end()
        self.assert_nothing_left()


class Ends(SlurmCase):
    def test_scancel_leaves_no_process(self):
        self.submit(10000)
        everyone = list(self.wait_step(3).values()) + processes.of_directory(self.directory)
        self.slurm.run("scancel", self.job)
        self.assertEqual(self.wait_end()[0], "CANCELLED")
        self.assertEqual([processes.describe(p) for p in processes.wait_gone(everyone, 60)], [])
        self.assert_nothing_left()

    def test_ranks_that_ignore_term_are_killed_in_time(self):
        self.submit(10000, "ignore-term")
        self.wait_step(3)
        self.slurm.run("scancel", self.job)
        self.assertEqual(self.wait_end()[0], "CANCELLED")
        self.assert_nothing_left()

    def test_the_time_limit_ends_the_job_in_order(self):
        self.submit(100000, more="--time 1")
        self.wait_step(3)
        self.assertEqual(self.wait_end()[0], "TIMEOUT")
        self.assertIn("interrupted", self.output())
        self.assert_nothing_left()

    def test_a_user_signal_reaches_ranks_and_ends_nothing_of_ours(self):
        self.submit(400)
        self.wait_step(3)
        before = {pid for pid in processes.of_directory(self.directory)}
        ranks = set(self.wait_step(3).values())
        self.slurm.run("scancel", "--signal", "USR1", self.job)
        # store_rank.py does not catch it: it ends, and is started again by what did survive.
        self.wait_step(3, attempt=1)
        left = {pid for pid in before - ranks if not processes.alive(pid)}
        gone = [pid for pid in left]
        self.assertLessEqual(len(gone), 1, "only the rendezvous store of the attempt ends with it")
        self.assertEqual(self.wait_end(), ("COMPLETED", "0:0"), self.output())
        self.assert_nothing_left()

    def test_a_requeue_by_hand_starts_the_run_again(self):
        self.submit(600)
        self.wait_step(3)
        before = len(self.notes())
        self.assertEqual(self.slurm.run("scontrol", "requeue", self.job).returncode, 0)
        self.wait_step(3, after=before)
        self.assertEqual(self.wait_end(), ("COMPLETED", "0:0"), self.output())
        self.assert_nothing_left()


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    if WHY_NOT:
        print(f"every test was skipped: {WHY_NOT}")
    raise SystemExit(0 if program.result.wasSuccessful() else 1)
