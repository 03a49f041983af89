# SPDX-License-Identifier: Apache-2.0
"""`holdfast run` when parts of itself die, are stopped, or run out of room."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import processes
from run_case import RANK, RunCase

LONG = 10000  # steps of a rank that is to be ended


class Supervision(RunCase):
    def test_a_killed_supervisor_comes_back_and_no_rank_notices(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, 200)
        self.wait_step(3)
        os.kill(self.supervisor(run), signal.SIGKILL)
        code, out, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertIn("the supervisor of this run was killed by signal 9; it is started again", err)
        self.assertEqual({n["attempt"] for n in self.notes()}, {0})
        self.assertIn("1| rank 1 is done\n", out)
        self.assert_nothing_left()
        self.assertEqual(self.state_directories(), [])

    def test_a_supervisor_that_came_back_still_recovers_and_ends(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, LONG)
        victim = self.wait_step(3)[1]
        before = self.supervisor(run)
        os.kill(before, signal.SIGKILL)
        processes.wait_until(lambda: any("holdfast-agent" in processes.program(p) for p in self.everyone()
                                         if processes.parent(p) not in (0, 1, before)), 30, "another agent")
        os.kill(victim, signal.SIGKILL)
        self.wait_step(3, attempt=1)
        run.send_signal(signal.SIGTERM)
        code, _, err = self.finish(run)
        self.assertEqual(code, 130, err)
        self.assert_nothing_left()

    def test_a_stopped_supervisor_is_continued(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, 100)
        self.wait_step(3)
        supervisor = self.supervisor(run)
        os.kill(supervisor, signal.SIGSTOP)
        processes.wait_until(lambda: processes.state(supervisor) == "T", 10, "the stop")
        processes.wait_until(lambda: processes.state(supervisor) != "T", 10, "the supervisor to be continued")
        self.assertEqual(self.finish(run)[0], 0)
        self.assert_nothing_left()

    def test_a_supervisor_stopped_at_its_start_is_continued(self):
        run = self.start("--nproc-per-node", 1, RANK, self.directory, 5)
        child = processes.wait_until(lambda: [p for p in processes.all_pids() if processes.parent(p) == run.pid], 30,
                                     "the supervisor")[0]
        os.kill(child, signal.SIGSTOP)
        code, _, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assert_nothing_left()

    def test_run_and_supervisor_killed_leave_no_process(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, LONG)
        self.wait_step(3)
        everyone = self.everyone()
        self.assertEqual(len(self.stores()), 1)
        supervisor = self.supervisor(run)
        run.kill()
        os.kill(supervisor, signal.SIGKILL)
        self.finish(run)
        self.assertEqual([processes.describe(p) for p in processes.wait_gone(everyone, 40)], [])


class Ends(RunCase):
    def test_a_killed_run_leaves_neither_process_nor_directory(self):
        for signo in (signal.SIGKILL, signal.SIGQUIT):
            run = self.start("--nproc-per-node", 2, RANK, self.directory, LONG)
            self.wait_step(3)
            self.assertEqual(len(self.state_directories()), 1)
            run.send_signal(signo)
            self.finish(run)
            self.wait_nothing_left(40)
            os.remove(os.path.join(self.directory, "log"))

    def test_a_hang_up_ends_in_order(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, LONG)
        self.wait_step(3)
        run.send_signal(signal.SIGHUP)
        code, _, err = self.finish(run)
        self.assertEqual(code, 130, err)
        self.assert_nothing_left()
        self.assertEqual(self.state_directories(), [])

    def test_an_interrupt_at_any_moment_of_the_start(self):
        for delay_ms in (0, 5, 15, 40, 100, 250):
            run = self.start("--nproc-per-node", 2, RANK, self.directory, LONG)
            time.sleep(delay_ms / 1000)  # the moment is what is tested
            run.send_signal(signal.SIGINT)
            code, _, err = self.finish(run)
            self.assertIn(code, (130, -signal.SIGINT), err)  # before main() has blocked it, it just dies
            self.wait_nothing_left(20)

    def test_the_second_interrupt_kills_who_ignores_the_first(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, LONG, "ignore-term")
        self.wait_step(3)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        line = run.stderr.readline().decode()
        self.assertIn("again to kill them now", line)
        run.send_signal(signal.SIGINT)
        code, _, err = self.finish(run)
        self.assertEqual(code, 130, err)
        self.assertLess(time.monotonic() - began, 9 * processes.PATIENCE, "it waited for the 10 s of TERM")
        self.assert_nothing_left()

    def test_nobody_reads_the_output(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, 100)
        self.wait_step(3)
        run.stdout.close()
        run.stderr.read()
        self.assertEqual(run.wait(60), 0, "the job's own end decides")
        self.assert_nothing_left()


class Restarts(RunCase):
    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_max_restarts_counts_every_end_as_torchrun_does(self):
        script = self.write("fails.py", "import os, sys\nprint('try', os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
                                        "sys.exit(1)\n")
        code, out, err = self.finish(self.start("--max-restarts", 3, "--nproc-per-node", 1, script))
        self.assertEqual(code, 1)
        self.assertEqual(out.splitlines(), [f"try {n}" for n in range(4)], err)
        self.assertIn("restarts_max 3", err)

    def test_without_it_the_same_failure_soon_after_the_start_ends_the_run(self):
        script = self.write("fails.py", "import sys\nsys.exit(1)\n")
        code, _, err = self.finish(self.start("--nproc-per-node", 1, script))
        self.assertEqual(code, 1)
        self.assertIn("it failed 2 times soon after its start", err)

    def test_a_store_that_dies_under_its_ranks_is_named(self):
        # These ranks meet a second time after a while.
        script = self.write("meets_twice.py", f"""
import os, sys, time
sys.path.insert(0, {os.path.dirname(RANK)!r})
import store_rank
store = store_rank.Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
print("met", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    store.wait(b"never")
""")
        run = self.start("--nproc-per-node", 2, script)
        processes.wait_until(lambda: self.stores(), 30, "the store")
        self.read_until(run, "met", 2)
        os.kill(self.stores()[0], signal.SIGKILL)
        code, _, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertIn("holdfast: the rendezvous store of attempt 1 on n0 (holdfast-tcp-store) ended before its ranks: "
                      "signal 9", err)
        self.assertNotRegex(err, r"holdfast: rank \d")

    def test_a_stopped_store_is_continued(self):
        run = self.start("--nproc-per-node", 2, RANK, self.directory, 100)
        self.wait_step(3)
        store = self.stores()[0]
        os.kill(store, signal.SIGSTOP)
        processes.wait_until(lambda: processes.state(store) != "T", 10, "the store to be continued")
        self.assertEqual(self.finish(run)[0], 0)


class Standby(RunCase):
    """A module that takes long to import and says who imported it, and a script that begins with it."""

    def setUp(self):
        super().setUp()
        self.modules = os.path.join(self.directory, "site")
        os.mkdir(self.modules)
        with open(os.path.join(self.modules, "heavy.py"), "w", encoding="utf-8") as file:
            file.write(f"import os\nwith open({self.directory!r} + '/imports', 'a') as f:\n"
                       "    f.write(f'{os.getpid()}\\n')\n")
        self.script = os.path.join(self.directory, "work.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(f"import heavy\nimport sys\nsys.path.insert(0, {os.path.dirname(RANK)!r})\nimport store_rank\n"
                       "store_rank.main()\n")

    def start_work(self, *arguments):
        return self.start(*arguments, "--nproc-per-node", 2, self.script, self.directory, 300,
                          environment={"PYTHONPATH": self.modules})

    def imports(self):
        try:
            with open(os.path.join(self.directory, "imports"), encoding="ascii") as file:
                return [int(line) for line in file]
        except FileNotFoundError:
            return []

    def test_standbys_take_the_place_of_killed_ranks_and_get_ready_again(self):
        run = self.start_work()
        ranks = self.wait_step(3)
        for attempt in range(2):
            processes.wait_until(lambda n=attempt: len(self.imports()) == 2 * (n + 2), 30, "both standbys")
            ready = set(self.imports()[-2:])
            self.assertFalse(ready & set(ranks.values()))
            os.kill(ranks[1], signal.SIGKILL)
            self.wait_step(3, attempt=attempt + 1)
            ranks = processes.wait_until(lambda n=attempt: len(r := self.wait_step(3, n + 1)) == 2 and r, 30, "both")
            self.assertEqual(set(ranks.values()), ready, "the ranks are not those that were ready")
        code, out, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertIn("1| rank 1 of 2 attempt 2 has met the others\n", out)
        self.assertIn("1| rank 1 is done\n", out)
        self.assert_nothing_left()

    def test_none_when_none_are_wanted(self):
        run = self.start_work("--standby", "none")
        self.wait_step(250)  # 5 s, well past their time
        self.assertEqual(len(self.imports()), 2)
        self.assertEqual(self.finish(run)[0], 0)

    def test_a_killed_standby_is_not_missed(self):
        run = self.start_work()
        ranks = self.wait_step(3)
        processes.wait_until(lambda: len(self.imports()) == 4, 30, "both standbys")
        for pid in self.imports()[-2:]:
            os.kill(pid, signal.SIGKILL)
        os.kill(ranks[0], signal.SIGKILL)
        code, _, err = self.finish(run)
        self.assertEqual(code, 0, err)
        self.assertIn("1 restart(s)", err)
        self.assert_nothing_left()

    def test_what_the_script_sees_is_what_python_would_show(self):
        show = os.path.join(self.directory, "show.py")
        with open(show, "w", encoding="utf-8") as file:
            file.write("import heavy\nimport os, sys, time, json\n"
                       "def main():\n"
                       "    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
                       "        print(json.dumps({'pid': os.getpid()}), flush=True)\n"
                       "        time.sleep(600)\n"
                       "    here = sys.modules['__main__']\n"
                       "    print(json.dumps({'argv': sys.argv, 'path0': sys.path[0], 'name': __name__,\n"
                       "        'file': here.__file__, 'main': here.main is main, 'cwd': os.getcwd(),\n"
                       "        'attempt': os.environ['HOLDFAST_ATTEMPT'], 'pid': os.getpid(),\n"
                       "        'names': sorted(n for n in vars(here) if not n.startswith('__'))}), flush=True)\n"
                       "    raise ValueError('mine')\n"
                       "if __name__ == '__main__':\n    main()\n")
        run = self.start("--max-restarts", 1, "show.py", "--flag", "x y", environment={"PYTHONPATH": self.modules})
        first = int(re.search(rb'"pid": (\d+)', run.stdout.readline())[1])
        ready = processes.wait_until(lambda: len(self.imports()) == 2 and self.imports()[1], 30, "the standby")
        os.kill(first, signal.SIGKILL)
        code, out, err = self.finish(run)
        self.assertEqual(code, 1, err)
        self.assertIn(f'"pid": {ready}', out)
        for part in ('"argv": ["show.py", "--flag", "x y"]', f'"path0": "{self.directory}"', '"name": "__main__"',
                     f'"file": "{show}"', '"main": true', f'"cwd": "{self.directory}"', '"attempt": "2"',
                     '"names": ["heavy", "json", "main", "os", "sys", "time"]'):
            self.assertIn(part, out)
        traceback = out[out.index("Traceback"):]
        self.assertNotIn("standby", traceback)
        self.assertRegex(traceback, rf'^Traceback \(most recent call last\):\n  File "{show}", line \d+, in <module>\n')


@unittest.skipUnless(os.geteuid() == 0, "needs root to mount a small file system")
class FullDisk(RunCase):
    def setUp(self):
        super().setUp()
        self.small = os.path.join(self.directory, "small")
        os.mkdir(self.small)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", self.small], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.small], check=True)

    def test_a_state_that_fills_up_can_still_be_ended(self):
        run = self.start("--nproc-per-node", 2, "--no-python", "--state", os.path.join(self.small, "s"),
                         sys.executable, "-c", "while True: print('x' * 1000)")
        processes.wait_until(lambda: os.statvfs(self.small).f_bavail == 0, 60, "a full disk")
        self.assertIn(f"no room in {self.small}/s", run.stderr.readline().decode())
        run.stdout.close()
        run.send_signal(signal.SIGTERM)
        run.stderr.read()
        self.assertEqual(run.wait(60 * processes.PATIENCE), 130)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
