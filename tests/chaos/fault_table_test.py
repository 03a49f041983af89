#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of right answers: equal to the page of faults when that page is at hand, and consistent in itself."""
import json
import os
import re
import sys
import unittest

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster"))
import fault_table  # noqa: E402
import injector  # noqa: E402

# Words of a row's class that are no class: its category, its remark, the absence of one.
NO_CLASS = ("none", "none of the job's ranks is at fault", "each its own")


def page_path():
    """The page beside the source tree, or the one that HOLDFAST_FAULTS_PAGE names; None when there is none."""
    named = os.environ.get("HOLDFAST_FAULTS_PAGE")
    root = os.environ.get("HOLDFAST_SOURCE_DIR") or os.path.dirname(os.path.dirname(fault_table.HERE))
    path = named or os.path.join(root, "..", "shared", "design", "faults.md")
    return path if named or os.path.exists(path) else None


def enum_names():
    """Names of FaultClass in the API."""
    root = os.environ.get("HOLDFAST_SOURCE_DIR") or os.path.dirname(os.path.dirname(fault_table.HERE))
    with open(os.path.join(root, "proto", "holdfast", "v1", "common.proto"), encoding="utf-8") as file:
        body = re.search(r"enum FaultClass \{(.*?)\n\}", file.read(), re.S)[1]
    return set(re.findall(r"^\s*([A-Z_]+) = \d+;", body, re.M)) - {"FAULT_CLASS_UNSPECIFIED"}


class Table(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.table = fault_table.load()

    def test_rows_equal_the_page(self):
        path = page_path()
        if path is None:
            self.skipTest("no page of faults at hand (HOLDFAST_FAULTS_PAGE names one)")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(fault_table.parse_page(file.read()), self.table["rows"])

    def test_every_row_is_whole_and_every_kind_is_in_one_row(self):
        kinds = []
        for row in self.table["rows"]:
            self.assertEqual(tuple(row), fault_table.COLUMNS)
            self.assertTrue(all(row.values()), row)
            kinds += fault_table.expand_kinds(row["kind"])
        self.assertEqual(sorted(kinds), sorted(set(kinds)))
        self.assertGreaterEqual(len(kinds), 70)

    def test_classes_are_those_of_the_api(self):
        known = enum_names()
        self.assertIn("PROCESS_DIED", known)
        for row in self.table["rows"]:
            if row["class"] not in NO_CLASS:
                for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b|\bDEVICE\b|\bNUMERIC\b|\bLINK\b", row["class"]):
                    self.assertIn(name, known, row["kind"])

    def test_what_is_injected_follows_its_row(self):
        for kind, answer in self.table["kinds"].items():
            row = fault_table.row_of(self.table, kind)
            self.assertIsNotNone(row, kind)
            self.assertEqual(answer["class"] or "none", row["class"], kind)
            self.assertEqual(str(answer["rung"]), row["rung"][0], kind)
            self.assertTrue(row["end"].startswith(answer["end"]), kind)

    def test_every_kind_has_an_injector_and_every_injector_a_kind(self):
        self.assertEqual(sorted(self.table["kinds"]), sorted(injector.INJECTORS))

    def test_a_changed_page_is_seen(self):
        text = "| kind | class | target | rung | end | in |\n|---|---|---|---|---|---|\n" \
            "| a (x), b-{1,2} | C | r | 2 | e | 1 |\n"
        rows = fault_table.parse_page(text)
        self.assertEqual(rows, [dict(zip(fault_table.COLUMNS, ("a (x), b-{1,2}", "C", "r", "2", "e", "1")))])
        self.assertEqual(fault_table.expand_kinds(rows[0]["kind"]), ["a", "b-1", "b-2"])
        self.assertNotEqual(rows, self.table["rows"])
        self.assertNotEqual(json.dumps(fault_table.parse_page(text.replace("| 2 |", "| 3 |"))), json.dumps(rows))


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    sys.exit(0 if program.result.wasSuccessful() else 1)
