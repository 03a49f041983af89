# SPDX-License-Identifier: Apache-2.0
"""`holdfast run`: what a user of torchrun types, with nothing set up before and nothing left behind."""
import json
import os
import re
import signal
import sys
import unittest

import processes
from run_case import RANK, RunCase


class Healthy(RunCase):
    def test_ranks_meet_and_are_shown_with_their_number(self):
        code, out, err = self.run_ranks(4, 10)
        self.assertEqual((code, err), (0, ""))
        for rank in range(4):
            self.assertIn(f"{rank}| rank {rank} of 4 attempt 0 has met the others\n", out)
            self.assertIn(f"{rank}| rank {rank} is done\n", out)
        arrivals = [n for n in self.notes() if "arrived" in n]
        self.assertEqual(sorted(n["arrived"] for n in arrivals), [1, 2, 3, 4])
        self.assertEqual({n["agent_store"] for n in arrivals}, {"True"})
        self.assertEqual(self.state_directories(), [], "the run's own directory is removed")
        self.assert_nothing_left()

    def test_a_rank_sees_what_torchrun_would_give_it(self):
        script = os.path.join(self.directory, "show.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import json, os, sys\nprint(json.dumps([dict(os.environ), sys.argv, os.getcwd()]))\n")
        code, out, _ = self.finish(self.start("--nproc_per_node=2", "--role", "actor", script, "--lr", "3e-4",
                                              environment={"MY_OWN": "value", "RANK": "99"}))
        self.assertEqual(code, 0)
        shown = sorted((json.loads(line.split("| ", 1)[1]) for line in out.splitlines()), key=lambda s: s[0]["RANK"])
        self.assertEqual(len(shown), 2)
        for rank, (environment, argv, cwd) in enumerate(shown):
            expected = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "2",
                        "ROLE_NAME": "actor", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0",
                        "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1", "MY_OWN": "value"}
            self.assertEqual({key: environment.get(key) for key in expected}, expected)
            self.assertEqual((argv, cwd), ([script, "--lr", "3e-4"], self.directory))

    def test_two_runs_at_once_in_one_directory(self):
        both = [self.start("--nproc-per-node", 2, RANK, self.directory, 20) for _ in range(2)]
        self.assertEqual([self.finish(process)[0] for process in both], [0, 0])
        ports = {n["port"] for n in self.notes() if "port" in n}
        self.assertEqual(len(ports), 2)
        self.assert_nothing_left()

    def test_the_store_listens_on_the_master_address_only(self):
        process = self.start("--nproc-per-node", 1, RANK, self.directory, 200)
        self.wait_step(1)
        port = self.notes()[0]["port"]
        listening = []
        for family in ("tcp", "tcp6"):
            with open(f"/proc/net/{family}", encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
            listening += [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
        self.assertEqual(listening, [f"0100007F:{port:04X}"])
        process.send_signal(signal.SIGINT)
        self.finish(process)

    def test_output_of_any_kind_and_closed_descriptors(self):
        for fault in ("nul", "close-fds"):
            code, out, _ = self.run_ranks(2, 10, fault)
            self.assertEqual(code, 0, fault)
            self.assertIn("0| rank 0 is done\n", out)
        self.assert_nothing_left()

    def test_what_leaves_its_parents_ends_with_the_run(self):
        code, _, _ = self.run_ranks(2, 10, "leave")
        self.assertEqual(code, 0)
        self.assert_nothing_left()

    def test_a_program_that_is_no_python(self):
        code, out, _ = self.finish(self.start("--no-python", "--nproc-per-node", 2, "/bin/sh", "-c", "echo I am $RANK"))
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0| I am 0", "1| I am 1"]))


class Faults(RunCase):
    def test_a_killed_rank_is_named_and_all_meet_in_a_fresh_store(self):
        process = self.start("--nproc-per-node", 4, RANK, self.directory, 50)
        victim = self.wait_step(5)[2]
        os.kill(victim, signal.SIGKILL)
        code, out, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertIn("holdfast: rank 2 on n0 ended with signal 9 (Killed)\n", err)
        self.assertIn("holdfast: DONE: all ranks exited with 0; 1 restart(s)\n", err)
        arrivals = [n for n in self.notes() if "arrived" in n]
        for attempt in (0, 1):
            mine = [n for n in arrivals if n["attempt"] == attempt]
            self.assertEqual(sorted(n["arrived"] for n in mine), [1, 2, 3, 4], "keys of another attempt were seen")
            self.assertEqual(len({n["port"] for n in mine}), 1)
        self.assertEqual(len({n["port"] for n in arrivals}), 2, "a port was used again")
        self.assertIn("2| rank 2 of 4 attempt 1 has met the others\n", out)
        self.assert_nothing_left()

    def test_rank_after_rank_is_killed_within_a_second(self):
        process = self.start("--nproc-per-node", 3, RANK, self.directory, 60)
        for attempt in range(3):
            os.kill(self.wait_step(2, attempt)[attempt], signal.SIGKILL)
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertIn("3 restart(s)", err)

    def test_no_restarts_when_none_are_wanted(self):
        process = self.start("--max-restarts", 0, "--nproc-per-node", 2, RANK, self.directory, 200)
        os.kill(self.wait_step(3)[0], signal.SIGKILL)
        code, _, err = self.finish(process)
        self.assertEqual(code, 1)
        self.assertIn("holdfast: rank 0 on n0 ended with signal 9 (Killed)\n", err)
        self.assertRegex(err, r"FAILED: .*restarts_max 0")
        kept = self.state_directories()
        self.assertEqual(len(kept), 1, "what failed is kept for a look")
        self.assertIn(kept[0], err)
        self.assert_nothing_left()

    def test_a_script_that_cannot_be_imported_is_the_programs_fault(self):
        code, out, err = self.run_ranks(2, 10, "raise-at-import")
        self.assertEqual(code, 1)
        self.assertIn("ImportError: no module named nonsense", out)
        self.assertIn("user program", err)
        self.assert_nothing_left()

    def test_a_rank_that_exits_with_an_error_once_is_started_again(self):
        for fault in ("exit7", "raise"):
            os.path.exists(os.path.join(self.directory, "log")) and os.remove(os.path.join(self.directory, "log"))
            code, _, err = self.run_ranks(2, 20, fault)
            self.assertEqual(code, 0, err)
            self.assertRegex(err, r"rank 1 ")

    def test_the_store_process_dies_and_the_run_goes_on_or_names_it(self):
        process = self.start("--nproc-per-node", 2, RANK, self.directory, 50)
        self.wait_step(3)
        self.assertEqual(len(self.stores()), 1)
        os.kill(self.stores()[0], signal.SIGKILL)
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)  # these ranks do not need it any more


class Ends(RunCase):
    def test_interrupt_ends_everything(self):
        process = self.start("--nproc-per-node", 2, RANK, self.directory, 10000)
        self.wait_step(3)
        process.send_signal(signal.SIGINT)
        code, _, err = self.finish(process)
        self.assertEqual(code, 130)
        self.assertIn("interrupted", err)
        self.assert_nothing_left()
        self.assertEqual(self.state_directories(), [])

    def test_terminate_ends_also_who_ignores_it(self):
        process = self.start("--nproc-per-node", 2, RANK, self.directory, 10000, "ignore-term")
        self.wait_step(3)
        process.send_signal(signal.SIGTERM)
        code, _, _ = self.finish(process)
        self.assertEqual(code, 130)
        self.assert_nothing_left()

    def test_nothing_outlives_a_run_that_is_killed(self):
        process = self.start("--nproc-per-node", 2, RANK, self.directory, 10000)
        self.wait_step(3)
        everyone = processes.of_directory(self.directory)
        self.assertGreaterEqual(len(everyone), 5)
        process.kill()
        self.finish(process)
        self.assertEqual([processes.describe(p) for p in processes.wait_gone(everyone, 30)], [])

    def test_killed_daemons_disturb_no_rank(self):
        process = self.start("--nproc-per-node", 2, RANK, self.directory, 150)
        self.wait_step(3)
        daemons = [pid for pid in processes.of_directory(self.directory)
                   if re.search("holdfast-(agent|scheduler)$", (processes.command_line(pid) or [""])[0])]
        self.assertEqual(len(daemons), 2)
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        code, out, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertEqual({n["attempt"] for n in self.notes()}, {0})
        self.assertIn("1| rank 1 is done\n", out)


class Refusals(RunCase):
    def test_one_clear_error_and_its_code(self):
        cases = [
            ((), 2, "no script"),
            (("--nproc-per-node", "gpu", RANK), 2, "shows no GPU"),
            (("--nnodes", "2", RANK), 2, '--nnodes: "2"'),
            (("--nprocs", "2", RANK), 2, "unknown flag --nprocs"),
            (("missing.py",), 3, "missing.py: no such script"),
            (("--state", "/proc/none", RANK), 3, "/proc/none"),
            (("--name", "-rf", RANK), 2, "-rf"),
            (("--grace", "soon", RANK), 2, "--grace"),
        ]
        for arguments, expected, text in cases:
            code, out, err = self.finish(self.start(*arguments))
            self.assertEqual((code, out), (expected, ""), (arguments, err))
            self.assertIn(text, err)
            self.assertTrue(err.startswith("holdfast: "), err)
        self.assert_nothing_left()

    def test_an_interpreter_or_program_that_does_not_exist(self):
        code, _, err = self.finish(self.start(RANK, self.directory, 1, environment={"PYTHON_EXEC": "/no/such/python"}))
        self.assertEqual((code, err), (3, "holdfast: PYTHON_EXEC: /no/such/python: no such program, or it cannot be "
                                          "executed\n"))
        code, _, err = self.finish(self.start("--no-python", "./nothing"))
        self.assertEqual(code, 3, err)
        code, _, err = self.finish(self.start(RANK, environment={"TMPDIR": "/no/such/place"}))
        self.assertEqual(code, 3, err)
        self.assertIn("/no/such/place (TMPDIR)", err)
        self.assertEqual(self.state_directories(), [])

    def test_help_lists_what_is_taken(self):
        code, out, _ = self.finish(self.start("--help"))
        self.assertEqual(code, 0)
        self.assertIn("--nproc-per-node N", out)
        self.assertIn("--max-restarts N", out)
        self.assertNotIn("--endpoint", out)

    def test_a_variable_that_is_no_text_is_left_out_and_told(self):
        code, _, err = self.finish(self.start("--no-python", "/bin/sh", "-c", "test -z $ODD",
                                              environment={b"ODD": b"a\xff"}))
        self.assertEqual((code, err), (0, "holdfast: ODD is not passed on: its value is not UTF-8\n"))


if __name__ == "__main__":
    unittest.main()
