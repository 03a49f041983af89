# SPDX-License-Identifier: Apache-2.0
"""`holdfast run` over several nodes: every "node" is a process of this machine, on loopback. The same with a real Slurm
around it is tests/long/slurm_test.py."""
import json
import os
import signal
import socket
import stat
import subprocess
import unittest

import processes
from run_case import DEADLINE_S, RANK, RunCase
from holdfast_cluster import built_binaries

KEY = "0123456789abcdef" * 4
REQUEUE = 75


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class GuestCase(RunCase):
    def start_pods(self, nodes, ranks, *arguments, flags=(), keys=None, nodes_flag=None):
        """A `holdfast run` for each node of a job that no Slurm manages; node 0 first."""
        endpoint = f"127.0.0.1:{free_port()}"
        return [self.start("--nnodes", nodes_flag or nodes, "--node-rank", node, "--rdzv-endpoint", endpoint,
                           *flags, "--nproc-per-node", ranks, RANK, self.directory, *arguments,
                           environment={"HOLDFAST_RUN_KEY": (keys or {}).get(node, KEY)})
                for node in range(nodes)]

    def start_step(self, nodes, ranks, *arguments, flags=(), **variables):
        """The same as the tasks of a Slurm step, with what Slurm sets in each."""
        common = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": str(nodes),
                  "SLURM_STEP_NUM_TASKS": str(nodes), "SLURM_STEP_NODELIST": f"n[1-{nodes}]",
                  "SLURM_SUBMIT_DIR": self.directory, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                  "SLURM_RESTART_COUNT": "0", **variables}
        return [self.start(*flags, "--nproc-per-node", ranks, RANK, self.directory, *arguments,
                           environment={**common, "SLURM_NODEID": str(node), "SLURMD_NODENAME": f"n{node + 1}"})
                for node in range(nodes)]

    def nodes(self):
        """The run's nodes by name, as its scheduler tells them."""
        [head] = [name for name in self.state_directories()
                  if os.path.exists(os.path.join(self.directory, name, "scheduler.sock"))]
        done = subprocess.run([os.path.join(built_binaries(), "holdfast"), "nodes", "--json", "--state",
                               os.path.join(self.directory, head)], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=DEADLINE_S, check=True)
        return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}

    def wait_witnesses(self, count):
        """Until all `count` nodes have joined and each has been told of the others: the answer to every beat does. A
        node that is lost before has no witness, and then only an operator's word frees its ranks."""
        def all_ready():
            return len([n for n in self.nodes().values() if n["state"] == "NODE_STATE_READY"]) == count
        processes.wait_until(all_ready, DEADLINE_S, f"{count} nodes")
        ages, beats = {}, {}

        def all_told():
            for name, node in self.nodes().items():
                age = int(node.get("beat_age_ms", 0))
                beats[name] = beats.get(name, 0) + (age < ages.get(name, 0))
                ages[name] = age
            return min(beats.values()) >= 2
        processes.wait_until(all_told, DEADLINE_S, lambda: f"two beats of each node: {beats}")

    def finish_all(self, tasks):
        return [self.finish(task) for task in tasks]

    def task_of(self, pid, tasks):
        """Which of `tasks` a process descends from."""
        chain = processes.ancestors(pid)
        return [index for index, task in enumerate(tasks) if task.pid in chain]

    def assert_codes(self, ends, code):
        self.assertEqual([end[0] for end in ends], [code] * len(ends), [end[2] for end in ends])


class Pods(GuestCase):
    def test_two_processes_form_one_job(self):
        tasks = self.start_pods(2, 1, 30)
        pids = self.wait_step(2)
        self.assertEqual([self.task_of(pids[rank], tasks) for rank in (0, 1)], [[0], [1]],
                         "each node runs its own rank, below its own `holdfast run`")
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        for rank in (0, 1):
            self.assertIn(f"{rank}| rank {rank} of 2 attempt 0 has met the others\n", ends[0][1])
        self.assertEqual(ends[1][1], "", "the first task alone shows the output")
        self.assert_nothing_left()
        self.assertEqual(self.state_directories(), [])

    def test_the_last_lines_of_every_node_are_shown(self):
        lines = 20000
        script = os.path.join(self.directory, "much.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"for line in range({lines}):\n    print('line', line, flush=line % 1000 == 0)\n")
        endpoint = f"127.0.0.1:{free_port()}"
        tasks = [self.start("--nnodes", 2, "--node-rank", node, "--rdzv-endpoint", endpoint, script,
                            environment={"HOLDFAST_RUN_KEY": KEY}) for node in (0, 1)]
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        shown = ends[0][1].splitlines()
        for rank in (0, 1):
            self.assertEqual([line for line in shown if line.startswith(f"{rank}| ")],
                             [f"{rank}| line {line}" for line in range(lines)])
        self.assert_nothing_left()

    def test_a_killed_rank_of_either_node_is_recovered(self):
        tasks = self.start_pods(2, 2, 60)
        os.kill(self.wait_step(5)[3], signal.SIGKILL)
        os.kill(self.wait_step(5, attempt=1)[0], signal.SIGKILL)
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        self.assertIn("holdfast: rank 3 on node1 ended with signal 9 (Killed)\n", ends[0][2])
        self.assertIn("holdfast: rank 0 on node0 ended with signal 9 (Killed)\n", ends[0][2])
        self.assertIn("2 restart(s)", ends[0][2])
        arrivals = [n for n in self.notes() if n["attempt"] == 2 and "arrived" in n]
        self.assertEqual(sorted(n["arrived"] for n in arrivals), [1, 2, 3, 4])
        self.assert_nothing_left()

    def test_the_codes_of_all_tasks_are_the_jobs(self):
        ends = self.finish_all(self.start_pods(2, 1, 10, "raise-at-import"))
        self.assert_codes(ends, 1)
        self.assertIn("user program", ends[0][2])
        self.assert_nothing_left()

    def test_term_at_either_task_ends_all(self):
        for victim in (0, 1):
            log = os.path.join(self.directory, "log")
            if os.path.exists(log):
                os.remove(log)
            tasks = self.start_pods(2, 1, 10000)
            self.wait_step(3)
            tasks[victim].send_signal(signal.SIGTERM)
            ends = self.finish_all(tasks)
            self.assertEqual(ends[victim][0], 130, ends)
            self.assertIn(ends[1 - victim][0], (130, REQUEUE))
            self.assert_nothing_left()

    def test_a_user_signal_reaches_the_ranks_of_its_node(self):
        script = os.path.join(self.directory, "signals.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import signal\n"
                       "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\nprint('waits', flush=True)\n"
                       "signal.sigwait({signal.SIGUSR1})\nprint('heard', flush=True)\n")
        endpoint = f"127.0.0.1:{free_port()}"
        tasks = [self.start("--nnodes", 2, "--node-rank", node, "--rdzv-endpoint", endpoint, script,
                            environment={"HOLDFAST_RUN_KEY": KEY}) for node in (0, 1)]
        seen = self.read_until(tasks[0], "waits", 2)
        for task in tasks:
            task.send_signal(signal.SIGUSR1)
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        self.assertEqual((seen + ends[0][1]).count("heard"), 2)

    def test_a_lost_node_is_replaced_by_the_spare_one(self):
        tasks = self.start_pods(3, 1, 1500, nodes_flag="2:3", flags=("--fence-after", "1s"))
        pids = self.wait_step(5)
        self.wait_witnesses(3)
        homes = {rank: self.task_of(pids[rank], tasks)[0] for rank in (0, 1)}
        victim = homes[1]
        self.assertNotEqual(victim, 0)
        mine = [pid for pid in processes.all_pids() if tasks[victim].pid in processes.ancestors(pid)]
        processes.kill_all(mine)
        again = self.wait_step(5, attempt=1)
        spare = ({1, 2} - {victim}).pop()
        self.assertEqual({self.task_of(again[rank], tasks)[0] for rank in (0, 1)}, {0, spare})
        ends = self.finish_all(tasks)
        self.assertEqual([ends[0][0], ends[spare][0]], [0, 0], ends)
        self.assertIn("restart(s)", ends[0][2])
        self.assert_nothing_left()

    def test_a_run_whose_first_node_is_lost_is_to_be_started_again(self):
        tasks = self.start_pods(2, 1, 10000)
        self.wait_step(3)
        processes.kill_all([pid for pid in processes.all_pids() if tasks[0].pid in processes.ancestors(pid)])
        ends = self.finish_all(tasks)
        self.assertEqual(ends[1][0], REQUEUE, ends[1][2])
        self.assertIn("its node is lost", ends[1][2])
        self.assert_nothing_left()


class Key(GuestCase):
    def call(self, endpoint, key):
        """`holdfast nodes` by somebody who has no key, or by the environment another one."""
        return subprocess.run([os.path.join(built_binaries(), "holdfast"), "nodes", "--endpoint", endpoint],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False,
                              env={**os.environ, "HOLDFAST_RUN_KEY": key} if key else None)

    def test_a_wrong_key_is_refused(self):
        tasks = self.start_pods(2, 1, 10, keys={1: "f" * 64})
        code, _, err = self.finish(tasks[1])
        self.assertEqual(code, 4)
        self.assertIn("key of another run", err)
        self.assertNotIn("f" * 64, err)
        self.assertIsNone(tasks[0].poll(), "the run itself goes on waiting for its own")
        tasks[0].send_signal(signal.SIGTERM)
        code, _, err = self.finish(tasks[0])
        self.assertEqual(code, 130, err)
        self.assert_nothing_left()

    def test_nobody_without_the_key_is_answered_and_it_is_told_nowhere(self):
        tasks = self.start_pods(2, 1, 10000)
        self.wait_step(3)
        arguments = [processes.command_line(pid) for pid in processes.of_directory(self.directory)]
        scheduler = [words for words in arguments if words and words[0].endswith("holdfast-scheduler")]
        self.assertEqual(len(scheduler), 1)
        endpoint = scheduler[0][scheduler[0].index("--listen") + 1]
        refused = self.call(endpoint, "")
        self.assertEqual(refused.returncode, 4, refused)
        self.assertIn(b"carries none", refused.stderr)
        self.assertNotIn(KEY, json.dumps(arguments))
        for folder, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(folder, name)
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                with open(path, "rb") as file:
                    holds = KEY.encode() in file.read()
                if holds:
                    self.assertEqual((name, stat.S_IMODE(os.stat(path).st_mode)), ("run.key", 0o600))
        for pid in self.wait_step(3).values():
            self.assertNotIn("HOLDFAST_RUN_KEY", processes.environment(pid))
        tasks[0].send_signal(signal.SIGTERM)
        self.finish_all(tasks)


class Step(GuestCase):
    def test_the_tasks_of_a_step_meet_by_the_file_in_their_shared_directory(self):
        tasks = self.start_step(2, 1, 40)
        self.wait_step(2)
        path = os.path.join(self.directory, ".holdfast-run-77.0.0")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        self.assertFalse(os.path.exists(path), "the file is removed with the run")
        self.assert_nothing_left()

    def test_ranks_see_the_variables_of_their_own_node(self):
        script = os.path.join(self.directory, "show.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import json, os\nprint(json.dumps(dict(os.environ)), flush=True)\n")
        tasks = [self.start(script, environment={
            "SLURM_JOB_ID": "78", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_SUBMIT_DIR": self.directory, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": f"n{node}", "CUDA_VISIBLE_DEVICES": str(7 - node), "MINE": "of all"})
            for node in (0, 1)]
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        shown = {line.split("| ", 1)[0]: json.loads(line.split("| ", 1)[1]) for line in ends[0][1].splitlines()}
        for rank in ("0", "1"):
            expected = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GROUP_RANK": rank, "MINE": "of all",
                        "MASTER_ADDR": "127.0.0.1", "SLURM_NODEID": rank, "SLURMD_NODENAME": f"n{rank}",
                        "CUDA_VISIBLE_DEVICES": str(7 - int(rank))}
            self.assertEqual({name: shown[rank].get(name) for name in expected}, expected)
            self.assertNotIn("HOLDFAST_IN_STEP", shown[rank])

    def test_signals_at_every_process_of_the_step_end_nothing_but_by_order(self):
        tasks = self.start_step(2, 1, 150, "ignore-term")
        pids = self.wait_step(3)
        ours = [pid for pid in processes.all_pids()
                if any(task.pid in processes.ancestors(pid) for task in tasks) and pid not in pids.values()]
        self.assertGreaterEqual(len(ours), 8)
        for pid in ours:
            for signo in (signal.SIGUSR1, signal.SIGUSR2):
                processes.send(pid, signo)
            if pid not in [task.pid for task in tasks]:
                processes.send(pid, signal.SIGTERM)
        ends = self.finish_all(tasks)
        self.assert_codes(ends, 0)
        self.assertEqual({n["attempt"] for n in self.notes()}, {0}, "nothing was disturbed")


class Refusals(GuestCase):
    def test_one_clear_error_and_its_code(self):
        step = {"SLURM_JOB_ID": "79", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "0",
                "SLURM_STEP_NUM_TASKS": "2"}
        cases = [
            ((("--nnodes", 2), {}), "--nnodes: \"2\" is more than this machine"),
            ((("--nnodes", 2, "--node-rank", 0, "--rdzv-endpoint", "a:1"), {}), "HOLDFAST_RUN_KEY is not set"),
            ((("--nnodes", 2, "--node-rank", 2, "--rdzv-endpoint", "a:1"), {"HOLDFAST_RUN_KEY": KEY}),
             "--node-rank: \"2\""),
            (((), {**step, "SLURM_STEP_NUM_TASKS": "16"}), "--ntasks-per-node 1"),
            ((("--nnodes", 3), step), "--nnodes: \"3\" is more than the 2 node(s) of this step"),
            (((), {**step, "HOLDFAST_RUN_KEY": "much-too-short"}), "HOLDFAST_RUN_KEY"),
        ]
        for (arguments, environment), text in cases:
            code, out, err = self.finish(self.start(*arguments, RANK, environment=environment))
            self.assertEqual((code, out), (2, ""), (arguments, err))
            self.assertIn(text, err)
            self.assertNotIn("much-too-short", err)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
