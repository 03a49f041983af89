#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`holdfast notify` and `run --notify`: a command for each incident, once."""
import os
import signal
import subprocess
import unittest

import processes
from cluster_case import ClusterCase
from holdfast_cluster import json_lines
from run_case import RANK, RunCase


class Notify(ClusterCase):
    def start(self, *arguments):
        process = subprocess.Popen(
            [os.path.join(self.cluster.binaries, "holdfast"), "notify", "--state", self.cluster.state, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(processes.kill_all, [process.pid])
        return process

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 130)

    def fault(self, job, attempt):
        self.cluster.kill_rank(job, 1)
        self.cluster.wait_first_step(job, attempt, 4)

    def test_each_incident_is_told_once_across_restarts_of_both(self):
        told, cursor = os.path.join(self.cluster.directory, "told"), os.path.join(self.cluster.directory, "cursor")
        command = f"cat >> {told}; test $HOLDFAST_JOB = j-1"
        job = self.run_job(steps=100000)
        self.cluster.wait_step(job, 2, ranks=4)
        self.fault(job, 2)  # before it is there
        process = self.start("--command", command, "--cursor", cursor)
        processes.wait_until(lambda: len(json_lines(told)) == 1, 20, "the first")
        self.fault(job, 3)
        processes.wait_until(lambda: len(json_lines(told)) == 2, 20, "the second")
        # The command ends a moment after it has written.
        second = int(json_lines(told)[1]["sequence"])
        processes.wait_until(lambda: int(open(cursor, encoding="ascii").read()) >= second, 20, "the cursor")
        self.stop(process)
        self.cluster.kill_daemon("scheduler")
        self.fault(job, 4)  # while it is away
        process = self.start("--command", command, "--cursor", cursor)
        processes.wait_until(lambda: len(json_lines(told)) == 3, 20, "the third")
        self.stop(process)
        incidents = [event["incident"] for event in json_lines(told)]
        self.assertEqual([i["fault_class"] for i in incidents], ["PROCESS_DIED"] * 3)
        self.assertEqual([i["ranks"] for i in incidents], [[1]] * 3)
        self.assertEqual(len({i["id"] for i in incidents}), 3)

    def test_a_command_that_fails_is_told_and_wrong_flags_are_refused(self):
        job = self.run_job(steps=100000)
        self.cluster.wait_step(job, 2, ranks=4)
        self.fault(job, 2)
        process = self.start("--command", "echo no such hook >&2; exit 7")
        self.assertRegex(process.stderr.readline().decode(), r"try 1 of 3: .*ended with 7: no such hook")
        self.stop(process)
        self.assertIn("--when", self.cluster.cli("notify", "--command", "true", "--when", "ever", expect=2).err)
        self.assertIn("--command", self.cluster.cli("notify", expect=2).err)


class RunNotify(RunCase):
    def test_run_tells_its_own_incidents(self):
        told = os.path.join(self.directory, "told")
        run = self.start("--notify", f"cat >> {told}", "--nproc-per-node", 2, RANK, self.directory, 60)
        os.kill(self.wait_step(3)[1], signal.SIGKILL)
        code, _, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertEqual([event["incident"]["ranks"] for event in json_lines(told)], [[1]])
        self.assertIn("signal 9", json_lines(told)[0]["incident"]["what"])
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
