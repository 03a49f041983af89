#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package without a keeper: the no-op, the encoding of plain values, states taken apart and put together."""
import array
import ctypes
import os
import random
import subprocess
import sys
import unittest
import warnings

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
PACKAGE = os.path.join(SOURCE, "client", "python")
sys.path.insert(0, PACKAGE)
from holdfast import _job, _tree, _values  # noqa: E402
from holdfast.errors import HoldfastError, StateDamaged, StateMismatch  # noqa: E402


def run(code, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return subprocess.run([sys.executable, "-B", "-c", code], env={**clean, "PYTHONPATH": PACKAGE, **environment},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


EVERYTHING = """
import holdfast
holdfast.init()
holdfast.init()
state = {"a": bytearray(b"untouched"), "b": 1}
assert holdfast.load(state) == 0 and state == {"a": bytearray(b"untouched"), "b": 1}
for step in range(1, 4):
    with holdfast.phase("forward"):
        holdfast.phase("backward")
    assert holdfast.save(state, step, samples=1, persist=True) is False
    holdfast.step(step, loss=1.0, lr=None)
    assert holdfast.should_stop() is None
holdfast.prepare(state)
print(holdfast.attached(), holdfast.rank(), holdfast.world_size(), holdfast.attempt(), holdfast.job(),
      holdfast.samples())
"""


class WithoutAnAgent(unittest.TestCase):
    def test_everything_is_a_no_op_with_one_warning(self):
        done = run(EVERYTHING)
        self.assertEqual((done.returncode, done.stdout), (0, "False 0 1 0 None 0\n"), done.stderr)
        self.assertEqual(done.stderr.count("HOLDFAST_SOCKET is not set"), 1, done.stderr)
        self.assertEqual(done.stderr.count("Warning"), 1, done.stderr)

    def test_no_library_is_needed_and_none_is_imported(self):
        done = run(EVERYTHING + "import sys\nprint(sorted({'torch', 'numpy'} & set(sys.modules)))",
                   HOLDFAST_LIBRARY="/no/such/library", RANK="3", WORLD_SIZE="8")
        self.assertEqual((done.returncode, done.stdout), (0, "False 3 8 0 None 0\n[]\n"), done.stderr)

    def test_mistakes_are_found_without_an_agent_too(self):
        for call, part in (("phase('lunch')", "phase 'lunch' is none of init, "), ("step(0)", "step 0 is not"),
                           ("save({}, 'x')", "step 'x' is not")):
            done = run(f"import holdfast\nholdfast.{call}")
            self.assertEqual(done.returncode, 1)
            self.assertIn(part, done.stderr)

    def test_an_agent_without_a_library_is_an_error_that_says_what_to_do(self):
        done = run("import holdfast\nholdfast.init()", HOLDFAST_SOCKET="/no/sock", HOLDFAST_LIBRARY="/no/lib.so")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/lib.so", done.stderr)
        self.assertIn("scripts/package", done.stderr)

    def test_what_verifies_not_ends_an_uncaught_process_with_its_code(self):
        done = run("from holdfast import StateDamaged\nraise StateDamaged('tensor a is spoilt')")
        self.assertEqual((done.returncode, done.stderr), (76, "holdfast: tensor a is spoilt\n"))
        with self.assertRaises(HoldfastError):
            raise StateDamaged("it can be caught")


class Encoding(unittest.TestCase):
    VALUES = [None, True, False, 0, -1, 2**63 - 1, -2**63, 2**63, -2**200, 0.1, float("inf"), -0.0, "", "ä\ud800", b"",
              b"\0\xff", [], (), {}, [1, [2, (3, {"a": None})]], {1: "x", "1": "y", (1, None): [b"z"], None: True}]

    def test_values_come_back_with_their_types(self):
        for value in [*self.VALUES, self.VALUES]:
            with self.subTest(value=value):
                again = _values.decode(_values.encode(value))
                self.assertEqual(repr(again), repr(value))

    def test_the_bytes_are_those_of_the_document(self):
        body = b"d\x01\0\0\0" + b"s\x01\0\0\0a" + b"t\x02\0\0\0" + b"i\x05" + b"\0" * 7 + b"n"
        whole = b"HUFPYST1" + b"\x01\0\0\0" + b"\0" * 4 + len(body).to_bytes(8, "little") + body
        encoded = bytes(_values.encode({"a": (5, None)}))
        self.assertEqual(encoded, whole.ljust(65536, b"\0"))

    def test_the_size_stays_put(self):
        self.assertEqual(len(_values.encode([0] * 100)), len(_values.encode([2**62] * 1000)))

    def test_nan_keeps_its_bits(self):
        self.assertNotEqual(_values.decode(_values.encode(float("nan"))), 0)

    def test_what_has_no_encoding_is_refused(self):
        for value in (1j, {1}, object(), range(3), lambda: 0):
            with self.assertRaises(_values.Unencodable):
                _values.encode(value)
        deep = []
        for _ in range(100):
            deep = [deep]
        with self.assertRaisesRegex(_values.Unencodable, "64 deep"):
            _values.encode(deep)

    def test_nonsense_is_refused_and_never_more(self):
        draw = random.Random(1)
        good = bytes(_values.encode(self.VALUES + [_values.Ref("a", "bytearray", 6, (3,), (3,))]))
        for _ in range(3000):
            bad = bytearray(good[:600])
            for _ in range(draw.randrange(1, 4)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            try:
                _values.decode(bad[:draw.randrange(len(bad)) if draw.random() < 0.2 else len(bad)])
            except ValueError:
                pass  # anything else is an error of the test
        for bad, part in ((b"", "the header alone"), (b"X" * 40, "begins with"),
                          (good[:8] + b"\2" + good[9:], "version 2"), (good[:100], "says"),
                          (good[:16] + b"\5" + b"\0" * 7 + b"nnnnn", "behind the end"),
                          (good[:16] + b"\5" + b"\0" * 7 + b"l\xff\xff\xff\xff", "items")):
            with self.assertRaisesRegex(ValueError, part):
                _values.decode(bad)


class Memory:
    """Stands for a snapshot: bytes by (name, offset, size)."""

    def __init__(self, boxes):
        self.held = {(b.name, b.offset, b.size): ctypes.string_at(b.address, b.nbytes) for b in boxes}
        self.rest = self.held[[key for key in self.held if key[0].endswith("#state")][0]]

    def load(self, state, rank=0, world=1):
        filler = _tree.Filler(rank, world)
        filler.plan(state, _values.decode(self.rest))
        for box in filler.boxes:
            data = self.held[(box.name, box.offset, box.size)]
            assert len(data) == box.nbytes
            ctypes.memmove(box.address, data, len(data))
        filler.apply()
        return state


def saved(state, rank=0, world=1):
    return Memory(_tree.Flattener(rank, world).flatten(state))


class Counter:
    """Something with a state of its own."""

    def __init__(self, start):
        self.values = {"n": start, "data": bytearray([start] * 4)}

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, values):
        self.values = values


def example(seed):
    return {"doubles": array.array("d", [seed, 2.5]), "none": array.array("i"), "bytes": bytearray([seed] * 5),
            "matrix": memoryview(bytearray([seed] * 24)).cast("i", (2, 3)),
            "strided": memoryview(bytearray(range(seed, seed + 20)))[::2],
            "list": [seed, [bytearray([seed])], "x"], "pair": (seed, bytearray([seed, seed])), "none_yet": None,
            "counter": Counter(seed), 5: {"a": {}, "b": []}}


def plainly(value):
    """For comparison: buffers as bytes."""
    if isinstance(value, Counter):
        return plainly(value.values)
    if isinstance(value, dict):
        return {key: plainly(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plainly(item) for item in value)
    return value.tobytes() if isinstance(value, (array.array, memoryview)) else value


class States(unittest.TestCase):
    def test_everything_is_filled_in_place(self):
        target = example(1)
        parts = [target["doubles"], target["bytes"], target["matrix"], target["list"][1][0], target["pair"][1]]
        memory = saved(example(7))
        memory.load(target)
        self.assertEqual(plainly(target), plainly(example(7)))
        self.assertIs(target["doubles"], parts[0])
        self.assertIs(target["matrix"], parts[2])
        self.assertIs(target["list"][1][0], parts[3])
        self.assertIs(target["pair"][1], parts[4])

    def test_what_is_missing_is_made(self):
        target = {5: {}, "list": [], "counter": Counter(0)}
        saved(example(7)).load(target)
        self.assertEqual(plainly(target), plainly(example(7)))
        self.assertIsInstance(target["doubles"], array.array)
        self.assertEqual(target["matrix"].shape, (2, 3))

    def test_differences_are_named_by_path_and_nothing_is_changed(self):
        for change, part in (
                (lambda s: s[5].update(c=1), "5/c: is not in what was saved"),
                (lambda s: s.update(bytes=bytearray(6)), r"bytes: was saved as bytearray \[5\], here is .* \[6\]"),
                (lambda s: s.update(doubles=array.array("q", [1, 2])), "doubles: was saved as array:d"),
                (lambda s: s["list"].extend([1, 2]), "list: was saved as list of 3, here is a list of 5"),
                (lambda s: s["list"].__setitem__(0, {}), "list/0: was saved as int, here is a dict"),
                (lambda s: s.update(bytes=5), "bytes: was saved as a tensor .bytearray., here is a int"),
                (lambda s: s.update(matrix=memoryview(bytes(24)).cast("i", (2, 3))), "matrix: is read-only")):
            target = example(1)
            change(target)
            values = target["list"][2], target["counter"].values["n"]
            with self.assertRaisesRegex(StateMismatch, part):
                saved(example(7)).load(target)
            self.assertEqual((target["list"][2], target["counter"].values["n"]), values)

    def test_what_cannot_be_saved_is_named_by_path(self):
        for value, part in ((object(), "^a/1/b: is a builtins.object"), ({1j: 2}, "^a/1/b: has a key of type complex"),
                            (lambda: 0, "^a/1/b: is a builtins.function")):
            with self.assertRaisesRegex(StateMismatch, part):
                saved({"a": [1, {"b": value}]})
        with self.assertRaisesRegex(StateMismatch, "a state is a dictionary"):
            saved([1])

    def test_names_are_unique_short_and_the_same_on_every_rank(self):
        part = bytearray(1)
        state = {"a/b": part, "a": {"b": part}, "x" * 400: part, "new\nline": part, "r": _tree.Replicated({"a": part})}
        names = [[box.name for box in _tree.Flattener(rank, 4).flatten(state)] for rank in (0, 3)]
        for listed in names:
            self.assertEqual(len(set(listed)), 6)
            self.assertTrue(all(0 < len(name.encode()) < 160 and name.isprintable() for name in listed), listed)
        # A name that had to be shortened ends with a digest, of the rank's own prefix too.
        self.assertEqual([name.replace("rank3", "rank0").partition("~")[0] for name in names[1]],
                         [name.partition("~")[0] for name in names[0]])
        self.assertIn("shared/r/a", names[0])
        self.assertIn("rank0/a/b", names[0])

    def test_replicated_parts_carry_the_number_of_their_copy(self):
        boxes = _tree.Flattener(3, 4).flatten({"a": _tree.Replicated(bytearray(2)), "b": bytearray(2)})
        self.assertEqual([(box.name, box.replica) for box in boxes],
                         [("shared/a", 3), ("rank3/b", 0), ("rank3#state", 0)])

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy")
        state = {"f": numpy.arange(6, dtype="f4").reshape(2, 3).T, "u": numpy.arange(3, dtype="u2"),
                 "c": numpy.array([1 + 2j]), "z": numpy.array(7), "s": numpy.arange(10)[::3],
                 "d": numpy.zeros((1,) * 9), "h": numpy.float16(0.5)}
        target = {key: numpy.zeros_like(value) if isinstance(value, numpy.ndarray) else 0.0
                  for key, value in state.items()}
        target["s"] = numpy.zeros(8, "i8")[::2]
        saved(state).load(target)
        for key, value in state.items():
            self.assertTrue(numpy.array_equal(target[key], value), key)
        made = saved(state).load({})
        for key, value in state.items():
            self.assertTrue(numpy.array_equal(made[key], value) and numpy.shape(made[key]) == numpy.shape(value), key)


class CadenceOfSaves(unittest.TestCase):
    def taken(self, snapshot_every, persist_every, steps, ready=lambda step: True, start=0):
        cadence, snapshots, persisted = _job.Cadence(snapshot_every, persist_every), [], []
        cadence.start(start)
        for step in steps:
            snapshot, persist = cadence.due(step)
            if not snapshot:
                continue
            if not ready(step):
                cadence.skipped(persist)
                continue
            cadence.taken(step, persist)
            snapshots.append(step)
            persisted += [step] if persist else []
        return snapshots, persisted

    def test_every_so_many_steps(self):
        self.assertEqual(self.taken(2, 4, range(1, 10)), ([2, 4, 6, 8], [4, 8]))
        self.assertEqual(self.taken(0, 0, range(1, 4)), ([1, 2, 3], []))
        self.assertEqual(self.taken(0, 2, range(1, 5)), ([1, 2, 3, 4], [2, 4]))

    def test_a_program_that_saves_more_seldom(self):
        self.assertEqual(self.taken(4, 8, range(3, 30, 3)), ([6, 9, 12, 18, 21, 24], [9, 18, 24]))

    def test_after_a_restart(self):
        self.assertEqual(self.taken(5, 10, range(13, 22), start=12), ([15, 20], [20]))

    def test_a_checkpoint_that_was_skipped_is_made_up_for(self):
        self.assertEqual(self.taken(1, 4, range(1, 9), ready=lambda step: step not in (2, 4, 5)),
                         ([1, 3, 6, 7, 8], [6, 8]))


if __name__ == "__main__":
    warnings.simplefilter("error")
    unittest.main()
