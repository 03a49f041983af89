#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of right answers: complete, consistent with itself, and equal to the page it comes from where that is at hand."""
import os
import sys
import unittest

import fault_table

SOURCE = os.environ.get("HOLDFAST_SOURCE_DIR", os.path.join(fault_table.HERE, "..", ".."))
PAGE = os.environ.get("HOLDFAST_FAULTS_PAGE") or os.path.join(SOURCE, "..", "shared", "design", "faults.md")

SMALL_PAGE = """
text | with a bar
| kind | class | target | rung | end | in |
|---|---|---|---|---|---|
| a-b, a-{c,d} (remark, with comma) | X | rank | 2 | same | 1 s |
"""


class Table(unittest.TestCase):
    maxDiff = None

    def test_pages_are_read(self):
        rows = fault_table.parse_page(SMALL_PAGE)
        self.assertEqual(len(rows), 1)
        self.assertEqual(rows[0]["class"], "X")
        self.assertEqual(fault_table.expand_kinds(rows[0]["kind"]), ["a-b", "a-c", "a-d"])
        self.assertNotEqual(rows, fault_table.parse_page(SMALL_PAGE.replace("| 2 |", "| 3 |")))

    def test_every_injected_kind_agrees_with_its_row(self):
        table = fault_table.load()
        self.assertGreaterEqual(len(table["kinds"]), 6)
        for kind, right in table["kinds"].items():
            row = fault_table.row_of(table, kind)
            self.assertIsNotNone(row, kind)
            self.assertEqual(right["class"] or "none", row["class"], kind)
            self.assertEqual(str(right["rung"]), row["rung"][0], kind)
            self.assertTrue(row["end"].startswith(right["end"]), kind)

    def test_the_table_is_the_page(self):
        if not os.path.exists(PAGE):
            print(f"no page at {PAGE}; HOLDFAST_FAULTS_PAGE names another place", file=sys.stderr)
            self.skipTest("the page is not at hand")
        with open(PAGE, encoding="utf-8") as file:
            self.assertEqual(fault_table.load()["rows"], fault_table.parse_page(file.read()))


if __name__ == "__main__":
    unittest.main()
