#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear error that names what is wrong, the right exit code, and nothing left behind."""
import os
import signal
import socket
import subprocess
import unittest

import processes
from cluster_case import JOB_DEADLINE_S, STEPS, ClusterCase, main, temporary_directory, test_rank_job
from holdfast_cluster import Cluster

USAGE = 2
REFUSED = 4


class Specifications(ClusterCase):
    def refused(self, text, *parts, codes=(USAGE,)):
        path = os.path.join(self.directory, "bad.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        result = self.cluster.cli("submit", "-f", path, expect=None)
        self.assertIn(result.code, codes, f"{text}\n{result.out}{result.err}")
        for part in parts:
            self.assertIn(part, result.err, text)
        errors = [line for line in result.err.splitlines() if line.startswith("holdfast:")]
        self.assertEqual(len(errors), 1, result.err)

    def test_each_names_field_and_value(self):
        self.refused("command: [true]\nnodez: 2\n", "nodez", "nodes")
        self.refused("command: [true]\nnodes: -1\n", "nodes", "-1")
        self.refused("command: [true]\nnodes: two\n", "nodes", "two")
        self.refused("command: [true]\ngpus_per_node: 65\n", "gpus_per_node", "65")
        self.refused("command: [true]\nname: 'a b'\n", "name", "a b")
        self.refused("command: [true]\nname: " + "x" * 64 + "\n", "name")
        self.refused("command: [true]\nname: ../../etc\n", "name")
        self.refused("nodes: 1\n", "command")
        self.refused("command: [true]\ntrainer_config: /x.yaml\n", "trainer_config")
        self.refused("command: [true]\nsnapshot_every_steps: 2\npersist_every_steps: 3\n", "persist_every_steps", "3")
        self.refused("command: [true]\nenvironment: {RANK: 1}\n", "RANK")
        self.refused("command: [true\n", "bad.yaml")
        self.refused("", "bad.yaml")
        self.assertEqual(self.cluster.json_lines("ps", "--all")[0].get("jobs", []), [])

    def test_files_that_are_not_there(self):
        missing = os.path.join(self.directory, "missing.yaml")
        result = self.cluster.cli("submit", "-f", missing, expect=None)
        self.assertIn(result.code, (USAGE, 3))
        self.assertIn(missing, result.err)
        self.cluster.cli("describe", "nosuchjob", expect=3)
        self.assertIn("j-12345", self.cluster.cli("cancel", "j-12345", expect=3).err)

    def test_command_not_found_and_not_executable(self):
        plain = os.path.join(self.directory, "plain")
        with open(plain, "w", encoding="ascii") as file:
            file.write("not a program\n")
        for path in (os.path.join(self.directory, "nothing-here"), plain):
            with self.subTest(path=path):
                job = self.cluster.submit({"name": "x", "command": [path], "nodes": 1, "gpus_per_node": 1})
                self.cluster.wait_state(job, "FAILED", 30)
                status = self.cluster.describe(job)
                self.assertIn(path, status["reason"] + status.get("last_stderr", ""))
                self.assertEqual(self.cluster.rank_pids(job), {})

    def test_working_directory_missing(self):
        job = self.cluster.submit({"name": "x", "command": ["/bin/true"], "working_directory": self.directory + "/none",
                                   "nodes": 1, "gpus_per_node": 1})
        self.cluster.wait_state(job, "FAILED", 30)
        status = self.cluster.describe(job)
        self.assertIn(self.directory + "/none", status["reason"] + status.get("last_stderr", ""))

    def test_an_ambiguous_name_is_refused(self):
        for _ in range(2):
            self.cluster.submit({"name": "twin", "command": ["/bin/sleep", "100"], "nodes": 1, "gpus_per_node": 1})
        result = self.cluster.cli("cancel", "twin", expect=REFUSED)
        self.assertIn("j-1", result.err)
        self.assertIn("j-2", result.err)
        for job in (1, 2):
            self.cluster.cli("cancel", f"j-{job}")
            self.cluster.wait_state(job, "CANCELLED", 30)


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Nonsense(ClusterCase):
    NODES = 1

    def test_a_rank_that_writes_nonsense_disturbs_nobody_else(self):
        """Two jobs on one node, under one agent; the keeper of the bad one says what it refused."""
        good = self.run_job("good", nodes=1, gpus_per_node=1, step_ms=100)
        bad = self.run_job("bad", nodes=1, gpus_per_node=1, extra=("--nonsense-at", 5), restarts_max=2, steps=500)
        log = os.path.join(self.cluster.keeper_dir("n0", bad), "keeper.log")
        for refused in ("not a packet of the rank interface", "may not attach", "is not one of a rank's"):
            processes.wait_until(lambda text=refused: text in read_text(log), 30, lambda: read_text(log))
        self.cluster.wait_state(bad, ("FAILED", "DONE"), JOB_DEADLINE_S)
        self.cluster.wait_state(good, "DONE", JOB_DEADLINE_S)
        alone = self.run_job("alone", nodes=1, gpus_per_node=1)
        self.cluster.wait_state(alone, "DONE", JOB_DEADLINE_S)
        self.assertEqual(self.cluster.digest(good, STEPS), self.cluster.digest(alone, STEPS))
        self.assertEqual(self.cluster.incidents(good), [])
        self.assertEqual(self.cluster.describe(good).get("restarts", 0), 0)
        for node in self.cluster.node_list():
            self.assertEqual(node["state"], "NODE_STATE_READY", node)


class Daemons(ClusterCase):
    def run_daemon(self, name, *arguments):
        return self.cluster.tool(name, *arguments, timeout=30)

    def test_a_second_scheduler_on_the_same_state_is_refused(self):
        result = self.run_daemon("holdfast-scheduler", "--state", self.cluster.state)
        self.assertEqual(result.code, REFUSED, result.err)
        self.assertIn(self.cluster.state, result.err)
        job = self.run_job(steps=5)
        self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)

    def test_a_second_up_on_the_same_state_is_refused(self):
        result = self.cluster.cli("up", "--nodes", 1, "--gpus-per-node", 1, "--simulate", "-d", expect=None)
        self.assertEqual(result.code, REFUSED, result.err)
        self.assertIn(self.cluster.state, result.err)
        self.assertEqual(self.cluster.ready_nodes(), 2)

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            other = os.path.join(self.directory, "other")
            result = self.run_daemon("holdfast-scheduler", "--state", other, "--listen", address)
        self.assertNotEqual(result.code, 0)
        self.assertIn(address, result.err)

    def test_state_directory_not_usable(self):
        file = os.path.join(self.directory, "file")
        with open(file, "w", encoding="ascii"):
            pass
        for state in (file, file + "/below"):
            result = self.run_daemon("holdfast-scheduler", "--state", state)
            self.assertNotEqual(result.code, 0)
            self.assertIn(file, result.err)

    def test_state_path_too_long(self):
        long_path = os.path.join(self.directory, "x" * 120)
        result = self.run_daemon("holdfast-scheduler", "--state", long_path)
        self.assertNotEqual(result.code, 0)
        self.assertIn("too long", result.err)
        self.assertIn("107", result.err)

    def test_no_scheduler_is_unreachable(self):
        result = self.cluster.tool("holdfast", "ps", "--state", os.path.join(self.directory, "nobody"))
        self.assertEqual(result.code, 5, result.err)
        self.assertIn("nobody", result.err)


class FullDisk(unittest.TestCase):
    """A store of 2 MiB: every save that does not fit is reported, training goes on, and no job is DONE without it."""

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small file system needs root")
    def test_checkpoints_that_do_not_fit_are_reported_and_training_goes_on(self):
        directory = temporary_directory()
        store = os.path.join(directory, "store")
        os.makedirs(store)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", store], check=True)
        cluster = Cluster(directory)
        try:
            cluster.up()
            job = cluster.submit(test_rank_job(cluster, "long", steps=100 * STEPS, store=store))
            cluster.wait_event(lambda e: store in e.get("text", "") and "make room" in e["text"], 60, "an error")
            done = min(recorder.steps_done for recorder in cluster.recorders(job).values())
            cluster.wait_step(job, done + 10)
            self.assertEqual(cluster.describe(job).get("restarts", 0), 0)
            cluster.cli("cancel", f"j-{job}")
            cluster.wait_state(job, "CANCELLED", 60)
            job = cluster.submit(test_rank_job(cluster, "short", steps=20, store=store, restarts_max=2))
            cluster.wait_state(job, "FAILED", 90)
            self.assertIn("make room", cluster.cli("describe", f"j-{job}").out)
            cluster.down()
        finally:
            cluster.stop_hard()
            subprocess.run(["umount", "-l", store], check=True)
            cluster.discard()


class Interrupted(unittest.TestCase):
    def test_up_that_is_interrupted_leaves_nothing(self):
        directory = temporary_directory()
        cluster = Cluster(directory)
        try:
            foreground = subprocess.Popen(
                [os.path.join(cluster.binaries, "holdfast"), "up", "--state", cluster.state, "--nodes", "2",
                 "--gpus-per-node", "1", "--simulate"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
            processes.wait_until(lambda: cluster.ready_nodes() == 2, 30, "two ready nodes", 0.1)
            foreground.send_signal(signal.SIGINT)
            self.assertEqual(foreground.wait(20), 0)
            self.assertEqual(processes.wait_gone(processes.of_directory(directory), 5), [])
        finally:
            cluster.stop_hard()
            cluster.discard()


if __name__ == "__main__":
    main()
