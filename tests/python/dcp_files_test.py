#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of holdfast.dcp without torch: the commit file, every byte of it damaged, data that is damaged, short or
gone, and a save that is killed at each of its file operations."""
import errno
import io
import os
import random
import signal
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "client", "python"))
from holdfast import _dcp_files, _dcp_format  # noqa: E402
from holdfast.errors import HoldfastError, StateDamaged, StateUnreadable  # noqa: E402

SIZES = (0, 1, 100, _dcp_format.PIECE_BYTES, 2 * _dcp_format.PIECE_BYTES + 77, 5000, 3)
OPERATIONS = ("open", "pwrite", "fsync", "rename", "unlink")  # of os, that a save uses
ENTRY = _dcp_format.Entry("model/ä\ud800", (0, 3), "float32", (2, 2), 16, "sha256",
                          (("holdfast-dcp-0123456789abcdef-0.data", 0, "00" * 32),))


def contents(number, sizes):
    """What save `number` writes: no two saves have a byte in common."""
    return [bytes([number * 16 + i]) * size for i, size in enumerate(sizes)]


def save(directory, number, sizes=SIZES, threads=2, ranks=2, algorithm="sha256"):
    """As the writers of `ranks` ranks do it, one after the other."""
    entries = []
    for rank in range(ranks):
        mine = [(f"r{rank}/{i}", None, None, (len(data),), memoryview(data), data)
                for i, data in enumerate(contents(number, sizes))]
        entries += _dcp_files.write_data(directory, rank, iter(mine), threads, _dcp_format.PIECE_BYTES, algorithm)
    sizes = _dcp_format.file_sizes(entries)
    _dcp_files.check_sizes(directory, sizes, HoldfastError)
    _dcp_files.write_commit(directory, _dcp_format.encode_commit(entries, {"number": number}), sizes)


def load(directory):
    """(number of the save, {name: bytes}); every byte is verified."""
    commit = _dcp_format.read_commit(directory)
    with _dcp_files.Source(directory, commit) as source:
        source.check_files()
        found = {}
        for entry in commit.entries:
            source.open(entry)
            found[entry.fqn] = source.read(entry)
    return commit.body["number"], found


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="holdfast_dcp_")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        quiet = mock.patch("sys.stderr", io.StringIO())  # StateDamaged says itself there
        quiet.start()
        self.addCleanup(quiet.stop)

    def assert_whole(self, number, sizes=SIZES, ranks=2):
        found_number, found = load(self.directory)
        self.assertEqual(found_number, number)
        wanted = {f"r{rank}/{i}": data for rank in range(ranks) for i, data in enumerate(contents(number, sizes))}
        self.assertEqual(found.keys(), wanted.keys())
        self.assertTrue(all(found[key] == data for key, data in wanted.items()))

    def files(self):
        return sorted(os.listdir(self.directory))


class Commits(Case):
    def write(self, data):
        with open(os.path.join(self.directory, _dcp_format.COMMIT_NAME), "wb") as file:
            file.write(data)

    def test_what_was_written_is_read(self):
        self.write(_dcp_format.encode_commit([ENTRY], {"more": [1, None, "x"]}))
        commit = _dcp_format.read_commit(self.directory)
        self.assertEqual(commit.entries, [ENTRY])
        self.assertEqual(commit.body["more"], [1, None, "x"])
        self.assertEqual(commit.file_bytes, {ENTRY.pieces[0][0]: 16})

    def test_any_changed_byte_and_any_cut_is_damage(self):
        data = _dcp_format.encode_commit([ENTRY], {})
        draw = random.Random(4)
        for at in range(len(data)):
            for bad in (data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1:], data[:at],
                        data[:at] + b" " + data[at:]):
                self.write(bad)
                with self.assertRaisesRegex(StateDamaged, _dcp_format.COMMIT_NAME):
                    _dcp_format.read_commit(self.directory)

    def test_a_right_digest_over_wrong_contents_is_refused(self):
        good = _dcp_format.encode_commit([ENTRY], {})
        for old, new, part in ((b'"version":1', b'"version":2', "use a newer one"),
                               (b"holdfast-dcp-0123456789abcdef-0.data", b"../../../../etc/passwd", "a file called"),
                               (b'"bytes":16', b'"bytes":1', "ends behind"), (b'"bytes":16', b'"bytes":-1', "no count"),
                               (b'"digest":"sha256"', b'"digest":"crc32"', "crc32"), (b'"items"', b'"itemz"', "items"),
                               (b'"pieces":[[0', b'"pieces":[[7', "IndexError"),
                               (b'"offset":[0,3]', b'"offset":7', "iterable"),
                               (b'{"format"', b'["format"', "JSON")):
            body = good[:-_dcp_format.FOOTER_BYTES].replace(old, new, 1)
            self.assertNotEqual(body, good[:-_dcp_format.FOOTER_BYTES])
            self.write(body + b"sha256 " + _dcp_format.hashlib.sha256(body).hexdigest().encode() + b"\n")
            with self.assertRaisesRegex(StateDamaged, part):
                _dcp_format.read_commit(self.directory)

    def test_what_is_no_checkpoint_is_named(self):
        missing = os.path.join(self.directory, "no")
        for make, path, part in ((lambda: None, missing, "is no complete checkpoint: No such file"),
                                 (lambda: None, self.directory, "nothing was saved there"),
                                 (lambda: self.touch("holdfast-dcp-0123456789abcdef-0.data.part"), self.directory,
                                  "a save into it never ended"),
                                 (lambda: self.touch(".metadata"), self.directory, "FileSystemReader reads it")):
            make()
            with self.assertRaisesRegex(StateUnreadable, part):
                _dcp_format.read_commit(path)

    def touch(self, name):
        with open(os.path.join(self.directory, name), "wb"):
            pass


class Data(Case):
    def test_all_sizes_and_threads_and_digests(self):
        for number, (threads, algorithm) in enumerate(((1, "sha256"), (3, "blake2b-256"), (8, None))):
            save(self.directory, number, threads=threads, algorithm=algorithm)
            self.assert_whole(number)
        self.assertIn(_dcp_files.fastest_digest(), _dcp_format.DIGESTS)

    def test_many_small_items_go_in_few_writes(self):
        with mock.patch.object(_dcp_files.os, "pwrite", side_effect=os.pwrite) as writes:
            save(self.directory, 1, sizes=(1000,) * 15, threads=1, ranks=1)
        self.assertEqual(writes.call_count, 2)  # the data, and the commit

    def test_short_writes_are_gone_on_with(self):
        whole = os.pwrite
        with mock.patch.object(_dcp_files.os, "pwrite", side_effect=lambda fd, data, at: whole(fd, data[:70001], at)):
            save(self.directory, 1)
        self.assert_whole(1)

    def test_flipped_bytes_are_found_and_named(self):
        save(self.directory, 1, sizes=(10, 2000, 4 << 20))
        draw = random.Random(7)
        for name in self.files():
            path = os.path.join(self.directory, name)
            size = os.path.getsize(path)
            for at in [0, size - 1, *(draw.randrange(size) for _ in range(6))]:
                flip(path, at)
                with self.assertRaisesRegex(StateDamaged, f"{name}: .*digest"):
                    load(self.directory)
                flip(path, at)
        self.assert_whole(1, sizes=(10, 2000, 4 << 20))

    def test_short_long_and_missing_files_are_named(self):
        save(self.directory, 1, sizes=(100,))
        for name in self.files():
            if name == _dcp_format.COMMIT_NAME:
                continue
            path = os.path.join(self.directory, name)
            with open(path, "rb") as file:
                data = file.read()
            for bad in (data[:-1], data + b"x", b""):
                with open(path, "wb") as file:
                    file.write(bad)
                with self.assertRaisesRegex(StateDamaged, f"{name}: has {len(bad)} bytes, should have 100"):
                    load(self.directory)
                commit = _dcp_format.read_commit(self.directory)
                with self.assertRaisesRegex(StateDamaged, "should have 100"), \
                        _dcp_files.Source(self.directory, commit) as source:
                    for entry in commit.entries:
                        source.open(entry)  # the ranks that do not look at all files
            os.unlink(path)
            with self.assertRaisesRegex(StateDamaged, f"{name}: No such file"):
                load(self.directory)
            with open(path, "wb") as file:
                file.write(data)

    def test_a_checkpoint_that_is_replaced_while_it_is_read(self):
        save(self.directory, 1)
        commit = _dcp_format.read_commit(self.directory)
        save(self.directory, 2)
        with _dcp_files.Source(self.directory, commit) as source:
            with self.assertRaisesRegex(HoldfastError, "replaced the checkpoint while it was read") as caught:
                source.check_files()
            self.assertNotIsInstance(caught.exception, StateDamaged)

    def test_a_failing_write_leaves_nothing_and_names_the_remedy(self):
        save(self.directory, 1)
        before = self.files()
        for operation, code in (("pwrite", errno.ENOSPC), ("fsync", errno.EIO), ("rename", errno.EDQUOT)):
            with mock.patch.object(_dcp_files.os, operation, side_effect=OSError(code, os.strerror(code))):
                with self.assertRaises(OSError):
                    save(self.directory, 2)
            self.assertEqual(self.files(), before)
            self.assert_whole(1)
        text = str(_dcp_files.write_error("/x", OSError(errno.ENOSPC, "No space left on device")))
        self.assertRegex(text, "^/x: No space left on device; free space .* committed there before is as it was")

    def test_the_first_error_of_any_thread_stops_all(self):
        done = []

        def work(job):
            if job == 5:
                raise KeyError("five")
            done.append(job)
        with self.assertRaisesRegex(KeyError, "five"):
            _dcp_files.pump(iter(range(1000000)), work, 4)
        self.assertLess(len(done), 1000000)


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


class Durability(Case):
    """What a machine that loses power may lose is what was not synced: the order of the operations."""

    def record(self, log):
        def path_of(fd):
            return os.readlink(f"/proc/self/fd/{fd}")

        def watch(name, note):
            real = getattr(os, name)

            def wrapped(*arguments, **options):
                log.append((name, *note(*arguments)))
                return real(*arguments, **options)
            return mock.patch.object(_dcp_files.os, name, wrapped)
        for name, note in (("pwrite", lambda fd, *_: (path_of(fd),)), ("fsync", lambda fd: (path_of(fd),)),
                           ("rename", lambda a, b: (a, b)), ("unlink", lambda path: (path,))):
            patch = watch(name, note)
            patch.start()
            self.addCleanup(patch.stop)

    def test_all_is_synced_before_it_counts(self):
        save(self.directory, 1)
        old, log = set(self.files()) - {_dcp_format.COMMIT_NAME}, []
        self.record(log)
        save(self.directory, 2)
        commit = os.path.join(self.directory, _dcp_format.COMMIT_NAME)
        renames = [i for i, operation in enumerate(log) if operation[0] == "rename"]
        self.assertEqual([log[i][2] == commit for i in renames], [False] * (len(renames) - 1) + [True])
        self.assertGreater(len(renames), 1)
        for i in renames:
            part = log[i][1]
            last_write = max(k for k, operation in enumerate(log) if operation[:2] == ("pwrite", part))
            self.assertIn(("fsync", part), log[last_write:i])
        self.assertIn(("fsync", self.directory), log[renames[-2]:renames[-1]])
        unlinks = [i for i, operation in enumerate(log) if operation[0] == "unlink"]
        self.assertEqual({os.path.basename(log[i][1]) for i in unlinks}, old)
        self.assertIn(("fsync", self.directory), log[renames[-1]:unlinks[0]])

    def test_new_directories_are_synced_into_theirs(self):
        log = []
        self.record(log)
        _dcp_files.make_directory(os.path.join(self.directory, "a", "b"))
        self.assertEqual({operation[1] for operation in log}, {self.directory, os.path.join(self.directory, "a")})


class Killed(Case):
    SIZES = (1, 5000, 2 * _dcp_files.STRIDE_BYTES + 5)

    def killed_at(self, number, count, before):
        """Saves in a child that kills itself at its operation `count`; True when it came to that."""
        child = os.fork()
        if child == 0:
            try:
                self.count_down(count, before)
                save(self.directory, number, sizes=self.SIZES)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    @staticmethod
    def count_down(count, before):
        left = [count]
        for name in OPERATIONS:
            def wrapped(*arguments, real=getattr(os, name), **options):
                left[0] -= 1
                if left[0] == 0 and before:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*arguments, **options)
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result
            setattr(os, name, wrapped)

    def test_at_every_operation_the_old_or_the_new_is_whole(self):
        number, ends, count = 1, {"old": 0, "new": 0}, 0
        save(self.directory, number, sizes=self.SIZES)
        while True:
            count += 1
            died = [self.try_once(number, count, before, ends) for before in (True, False)]
            if not any(died):
                break
        self.assertGreater(count, 12)
        self.assertGreater(ends["old"], 12)
        self.assertGreater(ends["new"], 3)
        save(self.directory, 9, sizes=self.SIZES)
        self.assert_whole(9, sizes=self.SIZES)
        named = set(_dcp_format.read_commit(self.directory).file_bytes)
        self.assertEqual(set(self.files()), named | {_dcp_format.COMMIT_NAME})

    def try_once(self, number, count, before, ends):
        save(self.directory, number, sizes=self.SIZES)
        died = self.killed_at(number + 1, count, before)
        end = "old" if load(self.directory)[0] == number else "new"
        ends[end] += 1
        self.assert_whole(number if end == "old" else number + 1, sizes=self.SIZES)
        if not died:
            self.assertEqual(end, "new")
        return died

    def test_a_first_save_that_dies_is_no_checkpoint(self):
        self.assertTrue(self.killed_at(1, 6, True))
        self.assertTrue(self.files())
        with self.assertRaisesRegex(StateUnreadable, "is no complete checkpoint: .*never ended"):
            load(self.directory)


if __name__ == "__main__":
    unittest.main()
