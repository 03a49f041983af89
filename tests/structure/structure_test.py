#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tree keeps to its own rules: include table, links of the binaries, style that a machine can check.

Every check is first shown to fail on a small tree that breaks its rule.
"""
import os
import shutil
import subprocess
import tempfile
import unittest

import checks

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
BUILD = os.environ["HOLDFAST_BUILD_DIR"]
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


class Tree:
    """A source tree in a temporary directory."""

    def __init__(self, files):
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast_structure_")
        self.root = self._directory.name
        for path, text in files.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)

    def __enter__(self):
        return self.root

    def __exit__(self, *unused):
        self._directory.cleanup()


class CheckCase(unittest.TestCase):
    maxDiff = None

    def expect(self, check, files, *parts):
        """`check` finds one problem for each of `parts` in a tree of `files`, in order."""
        with Tree(files) as root:
            problems = check(root)
        self.assertEqual(len(problems), len(parts), problems)
        for problem, part in zip(problems, parts):
            self.assertIn(part, problem)


class IncludeTable(CheckCase):
    def test_refused_arrows_are_found(self):
        for source, include, part in (
                ("scheduler/a.cc", '"agent/b.h"', "scheduler may not include agent"),
                ("agent/a.cc", '"scheduler/core/b.h"', "agent may not include scheduler"),
                ("worker/a.cc", '"holdfast/v1/common.pb.h"', "worker may not include proto"),
                ("base/rank/a.cc", '"base/status.h"', "base/rank may not include base"),
                ("base/a.cc", '"base/rank/message.h"', "base may not include base/rank"),
                ("cli/a.cc", '"ckpt/store.h"', "cli may not include ckpt"),
                ("scheduler/a.cc", '"ckpt/store.h"', "scheduler may not include ckpt"),
                ("agent/keeper/a.cc", '"absl/status/status.h"', "no third party"),
                ("client/a.cc", "<nlohmann/json.hpp>", "no third party"),
                ("ckpt/client/a.cc", "<zstd.h>", "no third party"),
                ("worker/a.cc", "<grpcpp/grpcpp.h>", "worker may not include grpcpp"),
                ("scheduler/a.cc", "<ATen/ATen.h>", "scheduler may not include ATen"),
                ("agent/a.cc", "<gtest/gtest.h>", "outside a test"),
                ("agent/a.cc", '"tests/rank/b.h"', "test code"),
                ("base/unique_fd.h", '"base/status.h"', "everybody may include"),
                ("agent/a.cc", '"wonder/b.h"', "no known third party")):
            with self.subTest(source=source, include=include):
                self.expect(checks.check_includes, {source: f"{LICENCE}#include {include}\n"}, part)

    def test_allowed_arrows_are_not_reported(self):
        for source, include in (
                ("scheduler/core/a.cc", '"base/status.h"'), ("agent/a.cc", '"base/uring/ring.h"'),
                ("agent/a.cc", '"ckpt/client/snapshot.h"'), ("worker/a.cc", '"ckpt/format/manifest.h"'),
                ("worker/a.cc", '"base/rank/recorder.h"'), ("agent/keeper/a.cc", "<sys/wait.h>"),
                ("ckpt/client/a.cc", "<xxhash.h>"), ("client/a.cc", '"base/unique_fd.h"'),
                ("cli/a.cc", '"holdfast/v1/common.pb.h"'),
                ("base/rank/message_test.cc", '"gtest/gtest.h"'), ("tests/rank/a.cc", '"client/session.h"'),
                ("base/a.cc", "<vector>")):
            with self.subTest(source=source, include=include):
                self.expect(checks.check_includes, {source: f"{LICENCE}#include {include}\n"})

    def test_this_tree(self):
        self.assertEqual(checks.check_includes(SOURCE), [])

    def test_the_table_is_the_one_of_architecture_md(self):
        with open(os.path.join(SOURCE, "ARCHITECTURE.md"), encoding="utf-8") as file:
            text = file.read()
        for folder in checks.table.ARROWS:
            self.assertIn(f"{folder}/", text, f"ARCHITECTURE.md does not mention {folder}/")


class Links(CheckCase):
    def test_wrong_libraries_are_found(self):
        for name, needed, loaded, part in (
                ("holdfast-keeper", ["libc.so.6", "libgrpc++.so.1.51"], [], "links libgrpc++"),
                ("holdfast-keeper", ["libabsl_base.so.20220623"], [], "links libabsl_base"),
                ("holdfast-worker", ["libtorch_cpu.so"], ["libprotobuf.so.32"], "loads libprotobuf"),
                ("holdfast-agent", ["libtorch_cpu.so"], [], "loads libtorch_cpu"),
                ("holdfast-scheduler", ["libc10.so"], [], "loads libc10"),
                ("libholdfast.so", ["librocksdb.so.7.8"], [], "links librocksdb")):
            with self.subTest(name=name):
                problems = checks.link_problems(name, needed, loaded)
                self.assertTrue(any(part in problem for problem in problems), problems)

    def test_right_libraries_are_not_reported(self):
        for name, needed in (("holdfast-keeper", ["libc.so.6", "libstdc++.so.6", "libasan.so.8"]),
                             ("holdfast-agent", ["librocksdb.so.7.8", "liburing.so.2"])):
            self.assertEqual(checks.link_problems(name, needed, []), [])

    def test_readelf_output_is_understood(self):
        self.assertTrue(any(name.startswith("libc.so") for name in checks.needed_libraries("/bin/ls")))

    def test_the_built_binaries(self):
        built = [name for name in checks.table.BINARIES if checks.find_binary(BUILD, name)]
        expected = os.environ.get("HOLDFAST_EXPECTED_BINARIES", "").split()
        self.assertTrue(set(expected) <= set(built), f"not built: {sorted(set(expected) - set(built))}")
        self.assertEqual(checks.check_links(BUILD), [])


class Tidy(CheckCase):
    def test_text_rules_are_found(self):
        long_line = "// " + "x" * 120
        cases = (
            ({"base/a.cc": "int a;\n"}, "no SPDX"),
            ({"base/a.cc": LICENCE + long_line + "\n"}, "columns"),
            ({"base/a.cc": LICENCE + "\n" * 700}, "lines, at most"),
            ({"base/a.cc": LICENCE + "// TODO later\n"}, "unfinished"),
            ({"scripts/lib/a.py": "# SPDX-License-Identifier: Apache-2.0\n# FIXME\n"}, "unfinished"),
            ({"scripts/a": "#!/bin/bash\necho\n"}, "no SPDX"),
            ({"base/a.cc": LICENCE + 'const char* p = "/root/x";\n'}, "path of one machine"),
        )
        for files, part in cases:
            with self.subTest(part=part):
                self.expect(checks.check_text, files, part)
        self.expect(checks.check_text, {"base/a.cc": LICENCE + "int a;\n"})

    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_the_c_plus_plus_is_as_clang_format_writes_it(self):
        files = [path for path in checks.walk(SOURCE) if path.endswith(checks.CPP)]
        self.assertGreater(len(files), 100)
        done = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], cwd=SOURCE, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[:4000])

    def test_clock_rules_are_found(self):
        for line, part in (("std::this_thread::sleep_for(x);", "waits by the clock"),
                           ("usleep(5);", "waits by the clock"),
                           ("auto t = std::chrono::system_clock::now();", "time of day"),
                           ("x = time(nullptr);", "time of day")):
            with self.subTest(line=line):
                self.expect(checks.check_clocks, {"agent/a.cc": f"{LICENCE}{line}\n"}, part)
        self.expect(checks.check_clocks, {"agent/a_test.cc": LICENCE + "usleep(5);\n",
                                          "agent/b.cc": LICENCE + "// usleep(5)\n",
                                          "agent/c.cc": LICENCE + "deadline.Sleep(x);\n"})

    def test_long_functions_are_found(self):
        body = "  x();\n" * 69
        too_long = f"{LICENCE}void F() {{\n{body}}}\n"
        two_short = f"{LICENCE}void F() {{\n  x();\n}}\n\nvoid G() {{\n{body[7:]}}}\n"
        self.expect(checks.check_function_length, {"base/a.cc": too_long}, "a function of 71 lines")
        self.expect(checks.check_function_length, {"base/a.cc": two_short})

    def test_unregistered_tests_are_found(self):
        check, test = checks.check_tests_registered, {"base/a_test.cc": LICENCE}
        self.expect(check, {**test, "base/CMakeLists.txt": "SRCS ba_test.cc\n"}, "no CMakeLists.txt names it")
        self.expect(check, {**test, "base/CMakeLists.txt": "SRCS a_test.cc\n"})
        self.expect(check, {"tests/x/a_test.py": "", "tests/CMakeLists.txt": "holdfast_python_test(a_test DIR x)\n"})

    def test_dead_links_are_found(self):
        page = "[a](b.md) [c](d.md#part) [e](https://example.org/f) [g](#part)"
        self.expect(checks.check_document_links, {"docs/a.md": page, "docs/b.md": ""}, "links to d.md")
        self.expect(checks.check_document_links, {"README.md": "[a](docs/b.md)", "docs/b.md": ""})

    def test_this_tree(self):
        for check in (checks.check_text, checks.check_clocks, checks.check_function_length,
                      checks.check_tests_registered, checks.check_document_links):
            with self.subTest(check=check.__name__):
                self.assertEqual(check(SOURCE), [])


if __name__ == "__main__":
    unittest.main()
