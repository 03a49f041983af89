#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The judge is itself shown to refuse: a wrong name, rung, restart, end or digest is told from the right one."""
import sys
import unittest

import judge

DIED = {"class": "PROCESS_DIED", "target": "rank", "rung": 2, "end": "same"}
LOST = {"class": "NODE_LOST", "target": "node", "rung": 3, "end": "same"}
AGENT = {"class": "AGENT_DIED", "target": "node", "rung": 0, "end": "same"}
NONE = {"class": "", "target": "", "rung": 0, "end": "same"}
WALL_NS = 1_700_000_000_000_000_000


def incident(**changes):
    row = {"id": "1", "fault_class": "PROCESS_DIED", "ranks": [2], "rung": 2, "acted": True,
           "begin_wall_ns": str(WALL_NS + 5_000_000), "noticed_ms": 1.5, "named_ms": 2, "stopped_ms": 30,
           "restored_ms": 300, "first_step_ms": 400}
    row.update(changes)
    return row


def seen(incidents, state="DONE", restarts=1, digest="d", **changes):
    status = {"state": "JOB_STATE_" + state, "restarts": restarts, "reason": "why it failed"}
    return judge.Seen(status=status, incidents=incidents, digest=digest, reference="d", **changes)


class Judge(unittest.TestCase):
    def test_right(self):
        found = judge.judge(DIED, (2,), "", seen([incident()]))
        self.assertTrue(found.met and found.correct and found.bitwise_equal)
        self.assertEqual((found.why, found.false_actions, found.wrong_name, found.end), ("", 0, False, "same"))
        self.assertEqual(found.verdict, "PROCESS_DIED rank 2 rung 2")

    def test_wrong_rank_is_a_wrong_name(self):
        found = judge.judge(DIED, (1,), "", seen([incident()]))
        self.assertEqual((found.correct, found.wrong_name, found.met), (False, True, True))

    def test_a_victim_named_beside_the_culprit_is_wrong(self):
        found = judge.judge(DIED, (2,), "", seen([incident(ranks=[2, 3])]))
        self.assertEqual((found.correct, found.wrong_name), (False, True))

    def test_one_of_two_ranks_is_not_enough(self):
        found = judge.judge(DIED, (2, 3), "", seen([incident()]))
        self.assertEqual((found.correct, found.wrong_name), (False, False))

    def test_wrong_class(self):
        self.assertFalse(judge.judge(DIED, (2,), "", seen([incident(fault_class="PROCESS_STOPPED")])).correct)

    def test_nothing_noticed(self):
        found = judge.judge(DIED, (2,), "", seen([], restarts=0))
        self.assertEqual((found.correct, found.met, found.verdict), (False, False, "none"))

    def test_higher_rung_is_not_met(self):
        found = judge.judge(DIED, (2,), "", seen([incident(rung=3)]))
        self.assertTrue(found.correct)
        self.assertFalse(found.met)
        self.assertIn("rung 3, right is 2", found.why)

    def test_second_restart_is_a_false_action(self):
        found = judge.judge(DIED, (2,), "", seen([incident(), incident(id="2", ranks=[0])], restarts=2))
        self.assertEqual((found.false_actions, found.met, found.correct), (1, False, False))

    def test_a_restart_without_incident_counts_too(self):
        self.assertEqual(judge.judge(DIED, (2,), "", seen([incident()], restarts=3)).false_actions, 2)

    def test_failed_job_and_unequal_digest(self):
        self.assertFalse(judge.judge(DIED, (2,), "", seen([incident()], state="FAILED")).met)
        self.assertEqual(judge.judge(DIED, (2,), "", seen([incident()], state="FAILED")).end, "FAILED(why it failed)")
        unequal = judge.judge(DIED, (2,), "", seen([incident()], digest="e"))
        self.assertEqual((unequal.met, unequal.bitwise_equal, unequal.end), (False, False, "different"))
        self.assertFalse(judge.judge(DIED, (2,), "", seen([incident()], digest="")).bitwise_equal)

    def test_a_problem_on_the_way_is_not_met(self):
        found = judge.judge(DIED, (2,), "", seen([incident()], problems=("a process was left",)))
        self.assertFalse(found.met)
        self.assertIn("a process was left", found.why)

    def test_a_node_taken_out_of_service_is_a_false_action(self):
        self.assertEqual(judge.judge(DIED, (2,), "", seen([incident()], nodes_held=("n1",))).false_actions, 1)

    def test_node(self):
        right = incident(fault_class="NODE_LOST", ranks=[2, 3], node="n1", rung=3)
        self.assertTrue(judge.judge(LOST, (), "n1", seen([right]), (2, 3)).correct)
        self.assertFalse(judge.judge(LOST, (), "n1", seen([right]), (2, 3)).wrong_name)
        other = judge.judge(LOST, (), "n0", seen([right]), (0, 1))
        self.assertEqual((other.correct, other.wrong_name), (False, True))

    def test_rung_0(self):
        observed = incident(fault_class="AGENT_DIED", ranks=[], node="n1", rung=0, acted=False)
        right = judge.judge(AGENT, (), "n1", seen([observed], restarts=0))
        self.assertTrue(right.met and right.correct)
        acted = judge.judge(AGENT, (), "n1", seen([incident(fault_class="AGENT_DIED", ranks=[], node="n1")]))
        self.assertEqual((acted.met, acted.false_actions), (False, 1))

    def test_no_class(self):
        right = judge.judge(NONE, (), "", seen([], restarts=0))
        self.assertTrue(right.met and right.correct)
        self.assertEqual(judge.judge(NONE, (), "", seen([incident()])).false_actions, 1)
        self.assertFalse(judge.judge(NONE, (), "", seen([incident(acted=False, rung=0)], restarts=0)).correct)


class Times(unittest.TestCase):
    def test_from_the_injection(self):
        found = judge.times(incident(), WALL_NS, acted=True)
        self.assertEqual(found, {"noticed_ms": 6.5, "named_ms": 7, "stopped_ms": 35, "restored_ms": 305,
                                 "first_step_ms": 405})

    def test_what_is_not_known_is_null(self):
        self.assertEqual(set(judge.times(None, WALL_NS, True).values()), {None})
        observed = judge.times(incident(stopped_ms=0, noticed_ms=0), WALL_NS, acted=False)
        self.assertEqual((observed["noticed_ms"], observed["stopped_ms"], observed["first_step_ms"]), (5.0, None, None))


class Summary(unittest.TestCase):
    def line(self, number):
        return {"case": number, "fault": "rank-sigkill", "seed": 7}

    def test_all_right(self):
        cases = [(self.line(1), judge.judge(DIED, (2,), "", seen([incident()])), 1)]
        line = judge.summary(cases)
        self.assertEqual((line["correct_pct"], line["failed"]), (100.0, []))
        self.assertEqual((line["steps_lost_max"], line["recovered"]), (1, 1))
        self.assertTrue(judge.passes(line, cases))

    def test_one_wrong_of_two_does_not_pass(self):
        cases = [(self.line(1), judge.judge(DIED, (2,), "", seen([incident()])), 1),
                 (self.line(2), judge.judge(DIED, (0,), "", seen([incident(rung=3)])), 3)]
        line = judge.summary(cases)
        self.assertEqual((line["correct_pct"], line["wrong_name_pct"]), (50, 50))
        self.assertEqual((line["steps_lost_max"], line["failed"]), (3, [2]))
        self.assertFalse(judge.passes(line, cases))

    def test_wrong_names_alone_do_not_pass(self):
        cases = [(self.line(1), judge.judge(DIED, (0,), "", seen([incident()])), 0)]
        line = judge.summary(cases)
        self.assertEqual((line["failed"], line["correct_pct"]), ([], 0.0))
        self.assertFalse(judge.passes(line, cases))

    def test_no_case_does_not_pass(self):
        self.assertFalse(judge.passes(judge.summary([]), []))


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=1)
    sys.exit(0 if program.result.wasSuccessful() else 1)
