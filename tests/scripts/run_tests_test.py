#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/test's own logic, with a ctest that says what the test wants: verdict, minutes, the closing line."""
import contextlib
import io
import os
import sys
import tempfile
import types
import unittest

sys.path.insert(1, os.path.join(os.environ["HOLDFAST_SOURCE_DIR"], "scripts", "lib"))
import run_tests  # noqa: E402

PASSED = """    Start 1: a_test
1/1 Test #1: a_test ...........   Passed    0.02 sec

100% tests passed, 0 tests failed out of 1

Label Time Summary:
ckpt    =  90.00 sec*proc (1 test)
unit    =  30.50 sec*proc (4 tests)

Total Test time (real) =   0.03 sec
"""
FAILED = PASSED.replace("100% tests passed, 0 tests failed", "0% tests passed, 1 tests failed")


class Report(unittest.TestCase):
    def run_with(self, output, code, minutes=1.0, long=None):
        """Exit code and output of scripts/test when ctest prints `output` and ends with `code`."""
        with tempfile.TemporaryDirectory(prefix="holdfast_ctest_") as folder:
            fake = os.path.join(folder, "ctest")
            with open(fake, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {code}\n")
            os.chmod(fake, 0o755)
            outcome, printed = run_tests.Outcome(), io.StringIO()
            with contextlib.redirect_stdout(printed):
                run_tests.run_ctest([fake], folder, outcome)
                result = run_tests.report(types.SimpleNamespace(long=long), outcome, minutes)
        return result, printed.getvalue().rstrip().splitlines()

    def test_success_ends_with_the_closing_line(self):
        code, lines = self.run_with(PASSED, 0)
        self.assertEqual(code, 0)
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 1")
        self.assertIn("label ckpt: 1.5 minutes, 1 tests", lines)
        self.assertIn("label unit: 0.5 minutes, 4 tests", lines)

    def test_failure_is_a_failure(self):
        code, lines = self.run_with(FAILED, 8)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "0% tests passed, 1 tests failed out of 1")
        self.assertEqual(self.run_with(PASSED, 8)[0], 1)

    def test_no_test_at_all_is_a_failure(self):
        self.assertEqual(self.run_with("No tests were found!!!\n", 0)[0], 1)

    def test_too_long_is_a_failure(self):
        self.assertEqual(self.run_with(PASSED, 0, minutes=run_tests.MINUTES_MAX + 1)[0], 1)
        self.assertEqual(self.run_with(PASSED, 0, minutes=run_tests.MINUTES_MAX + 1, long="leak")[0], 0)


if __name__ == "__main__":
    unittest.main()
