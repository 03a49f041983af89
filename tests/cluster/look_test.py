# SPDX-License-Identifier: Apache-2.0
"""`holdfast look`: what ranks and the processes below them do and wait for, seen from outside."""
import json
import os
import re
import signal
import subprocess
import unittest

import processes
from holdfast_cluster import built_binaries
from run_case import RunCase

# A rank whose data loader reads its data from a FIFO that nobody writes to. It says its child's pid.
LOADER = """
import os, sys
rank = os.environ["RANK"]
child = os.fork()
if child == 0:
    fd = os.open(sys.argv[1] + "." + rank, os.O_RDONLY)
    os.read(fd, 1)
    os._exit(0)
print("loader", child, "of", os.getpid(), flush=True)
os.waitpid(child, 0)
"""
# Stands for py-spy: says how it was called, as py-spy would say where the code is.
PY_SPY = """#!/bin/sh
echo "$@" >> {log}
echo '[{{"os_thread_id": '$5', "frames": [{{"name": "load", "filename": "data.py", "line": 17}}]}}]'
"""


@unittest.skipUnless(os.path.exists("/proc/self/syscall"), "this kernel does not show system calls")
class Look(RunCase):
    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.directory, "s")
        self.data = os.path.join(self.directory, "data")
        self.path = os.environ["PATH"]

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def start_ranks(self, ranks):
        """Starts the run; gives {pid of a rank: pid of its loader} in the order of ranks."""
        holders = []
        for rank in range(ranks):
            fifo = f"{self.data}.{rank}"
            os.mkfifo(fifo)
            # Somebody has it open for writing, so that the open returns and the read is what blocks.
            holders.append(os.open(fifo, os.O_RDWR))
            self.addCleanup(os.close, holders[-1])
        script = self.write("train.py", LOADER)
        self.run_process = self.start("--standby", "none", "--nproc-per-node", ranks, "--state", self.state, script,
                                      self.data)
        text = self.read_until(self.run_process, r"loader \d+ of \d+\n", ranks)
        found = {int(rank or 0): (int(pid), int(child))
                 for rank, child, pid in re.findall(r"(?:(\d+)\| )?loader (\d+) of (\d+)\n", text)}
        return [found[rank] for rank in range(ranks)]

    def look(self, *arguments, expect=0, path=None):
        done = subprocess.run([os.path.join(built_binaries(), "holdfast"), "look", "--state", self.state,
                               *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                              check=False, env={**os.environ, "PATH": path or self.path})
        out, err = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, expect, f"{out}\n{err}")
        return out, err

    def look_until(self, text, *arguments):
        """A busy machine may need a while until the processes are where they are going."""
        seen = []

        def holds():
            seen.append(self.look(*arguments, "--interval", "200ms")[0])
            return text in seen[-1]
        processes.wait_until(holds, 30, lambda: f"{text!r} in {seen[-1]}")
        return seen[-1]

    def end(self):
        self.run_process.send_signal(signal.SIGINT)
        self.finish(self.run_process)

    def test_a_loader_that_waits_for_data_is_named_with_its_path(self):
        ranks = self.start_ranks(2)
        for rank, (pid, child) in enumerate(ranks):
            out = self.look_until(f", which waits in read of {self.data}.{rank} (descriptor ", "j-1", "--rank", rank)
            self.assertRegex(out, rf"\nrank {rank} waits for its child {child} \(\S+\), which waits in read of ")
            self.assertIn(f"rank {rank} on n0: pid {pid}, 1 process below it\n", out)
        out, _ = self.look("j-1", "--json", "--interval", "100ms")
        look = json.loads(out)
        self.assertEqual([r["pid"] for r in look["ranks"]], [pid for pid, _ in ranks])
        self.assertEqual([[p["pid"] for p in r["processes"]] for r in look["ranks"]], [list(pair) for pair in ranks])
        wait = look["ranks"][1]["processes"][1]["wait"]
        self.assertEqual(wait["descriptors"][0]["target"], f"{self.data}.1")
        self.assertTrue(wait["whole_interval"])
        self.end()
        self.assert_nothing_left()

    def test_a_stopped_rank_is_said_to_be_stopped_and_not_touched(self):
        [(pid, child)] = self.start_ranks(1)
        os.kill(child, signal.SIGSTOP)
        self.look_until(f"which is stopped by a signal (kill -CONT {child} lets it go on)", "j-1")
        self.assertEqual(processes.state(child), "T")
        self.assertTrue(processes.alive(pid))
        self.end()

    def test_python_lines_by_py_spy_where_it_is(self):
        [(pid, child)] = self.start_ranks(1)
        tools, log = os.path.join(self.directory, "tools"), os.path.join(self.directory, "calls")
        os.mkdir(tools)
        _, err = self.look("j-1", "--interval", "50ms", path="/bin:/usr/bin")
        if "pip install py-spy" not in err:
            self.skipTest("py-spy is beside this python")
        self.assertEqual(err.count("py-spy`"), 1)
        self.write("tools/py-spy", PY_SPY.format(log=log), 0o755)
        out, err = self.look("j-1", "--interval", "50ms", path=f"{tools}:/bin:/usr/bin")
        self.assertEqual(err, "")
        self.assertIn(f"\npython {pid}: load (data.py:17)\npython {child}: load (data.py:17)\n", out)
        with open(log, encoding="ascii") as file:
            self.assertEqual(file.read().splitlines(), [f"dump --json --nonblocking --pid {p}" for p in (pid, child)])
        self.write("tools/py-spy", "#!/bin/sh\necho not today >&2\nexit 1\n", 0o755)
        out, _ = self.look("j-1", "--interval", "50ms", path=f"{tools}:/bin:/usr/bin")
        self.assertIn(f"\npython {pid}: py-spy: not today\n", out)
        self.write("tools/py-spy", "#!/bin/sh\nexec sleep 600\n", 0o755)
        out, _ = self.look("j-1", "--interval", "50ms", path=f"{tools}:/bin:/usr/bin")
        self.assertIn(f"\npython {pid}: {tools}/py-spy did not end within 3 s\n", out)
        self.assertEqual([p for p in processes.all_pids() if processes.command_line(p) == ["sleep", "600"]], [])
        self.end()

    def test_one_clear_error_and_its_code(self):
        self.start_ranks(1)
        for arguments, code, text in (
                (("j-9",), 3, "j-9"), (("nonsense",), 3, "nonsense"), (("j-1", "--rank", 7), 2, "--rank: 7"),
                (("j-1", "--rank", "x"), 2, "--rank: x"), (("j-1", "--interval", "soon"), 2, '--interval: "soon"'),
                (("j-1", "--interval", "0s"), 2, '--interval: "0s"'), (("j-1", "--frob"), 2, "--frob"),
                ((), 2, "job is required")):
            with self.subTest(arguments=arguments):
                out, err = self.look(*arguments, expect=code)
                self.assertEqual(out, "")
                self.assertTrue(err.startswith("holdfast: "), err)
                self.assertIn(text, err)
        self.end()
        self.assertIn("holdfast: ", self.look("j-1", "--timeout", "1s", expect=5)[1])


class Standbys(RunCase):
    """A standby is a child of the keeper with the name of a rank, and is none."""

    def test_the_rank_is_told_from_its_standby_before_and_after_it_is_woken(self):
        state = os.path.join(self.directory, "s")
        script = os.path.join(self.directory, "work.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import json\nimport os, time\nprint('I am', os.getpid(), flush=True)\ntime.sleep(600)\n")
        run = self.start("--state", state, "--nproc-per-node", 1, script)

        def next_rank():
            return int(re.search(r"I am (\d+)\n", self.read_until(run, r"I am \d+\n"))[1])

        def standby():
            return [p for p in processes.of_directory(self.directory)
                    if any(w.endswith("holdfast-standby.py") for w in processes.command_line(p))]

        def looked():
            done = subprocess.run([os.path.join(built_binaries(), "holdfast"), "look", "j-1", "--state", state,
                                   "--json", "--interval", "20ms"], capture_output=True, timeout=60, check=False)
            return [[p["pid"] for p in rank["processes"]] for rank in json.loads(done.stdout)["ranks"]]
        first = next_rank()
        ready = processes.wait_until(standby, 30, "the standby")[0]
        self.assertEqual(looked(), [[first]])
        os.kill(first, signal.SIGKILL)
        second = next_rank()
        self.assertEqual(second, ready)
        self.assertEqual(looked(), [[second]])
        processes.wait_until(lambda: len(standby()) == 2, 30, "the next standby")
        self.assertEqual(looked(), [[second]])
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
