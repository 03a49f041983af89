# SPDX-License-Identifier: Apache-2.0
"""holdfast.dcp with a real torch.distributed.checkpoint in one process; run by tests/long/dcp_test.py in a Python that
has torch. HOLDFAST_SEED: other moments for kill -9 and other flipped bytes."""
import contextlib
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
sys.path[:0] = [os.path.join(SOURCE, "client", "python")]
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner  # noqa: E402

import holdfast.dcp  # noqa: E402
from holdfast.errors import HoldfastError, StateDamaged, StateMismatch, StateUnreadable  # noqa: E402

SEED = int(os.environ.get("HOLDFAST_SEED", "11"))
KILLS = 40
DEADLINE_S = 120
SMALL_DISK_MB = 16
torch.set_num_threads(1)  # the killed ones are forked


def equal(a, b):
    if isinstance(a, torch.Tensor):
        a, b = (t.detach().resolve_conj().contiguous() for t in (a, b))
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    return type(a) is type(b) and a == b


def raw(tensor):
    return bytes(tensor.flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def example(seed):
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(6, 8, generator=generator)
    return {"plain": base.clone(), "transposed": base.clone().t(), "strided": base.clone()[::2, 1::3],
            "view": base.clone().view(2, 24)[1], "scalar": base[0, 0].clone(), "empty": torch.empty(0, 3),
            "half": base.half(), "bf16": base.bfloat16(), "double": base.double(), "flags": base > 0,
            "bytes": (base * 10).to(torch.uint8), "long": (base * 1000).long(), "fp8": base.to(torch.float8_e4m3fn),
            "complex": torch.complex(base, -base), "conjugated": torch.complex(base, base).conj(),
            "deep": torch.zeros((1,) * 10) + seed, "parameter": torch.nn.Parameter(base.clone()),
            "uint16": (base.abs() * 99).to(torch.uint16),
            "nested": {"list": [seed, "x", {"t": base + 1}], "none": None, "real": seed / 3, "yes": True,
                       "b": b"\0\xff", "deep": {"big": 2**70 + seed, "": "empty key"}, "nothing": {}}}


def flat(value, path=()):
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in flat(item, (*path, key)).items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, (*path, i)).items()}
    return {path: value}


@contextlib.contextmanager
def quiet():
    """StateDamaged says itself on stderr."""
    with mock.patch("sys.stderr", io.StringIO()):
        yield


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="holdfast_dcp_")
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "new", "checkpoint")

    def save(self, state, path=None, **options):
        return dcp.save(state, storage_writer=holdfast.dcp.StorageWriter(path or self.path), **options)

    def load(self, state, path=None, **options):
        dcp.load(state, storage_reader=holdfast.dcp.StorageReader(path or self.path), **options)
        return state

    def assert_equal(self, have, want):
        have, want = flat(have), flat(want)
        self.assertEqual(have.keys(), want.keys())
        for path, value in want.items():
            self.assertTrue(equal(have[path], value), (path, have[path], value))

    @contextlib.contextmanager
    def refused(self, kind, part):
        """dcp wraps what any rank raises; ours is inside."""
        with quiet(), self.assertRaises(dcp.CheckpointException) as caught:
            yield
        inner = caught.exception.failures[0][0]
        self.assertIsInstance(inner, kind)
        self.assertRegex(str(inner), part)

    def data_files(self):
        return sorted(os.path.join(self.path, name) for name in os.listdir(self.path) if name.endswith(".data"))


class States(Case):
    def test_every_kind_comes_back_bit_for_bit_and_in_place(self):
        self.save(example(1))
        target = example(2)
        places = {key: value.data_ptr() for key, value in flat(target).items() if isinstance(value, torch.Tensor)}
        self.assert_equal(self.load(target), example(1))
        for key, place in places.items():
            self.assertEqual(flat(target)[key].data_ptr(), place, key)

    def test_nothing_of_a_store_is_pickle(self):
        def refuse(*unused, **more):
            raise AssertionError("pickle")
        with mock.patch.object(pickle, "dump", refuse), mock.patch.object(pickle, "dumps", refuse), \
                mock.patch.object(torch, "save", refuse):
            self.save(example(1))
        for name in os.listdir(self.path):
            with open(os.path.join(self.path, name), "rb") as file:
                data = file.read()
            self.assertNotIn(b"PK\x03\x04", data)  # torch.save's archive
            self.assertNotIn(b"ctorch", data)
        with mock.patch.object(pickle, "load", refuse):  # what dcp's own reader does with its metadata
            holdfast.dcp.StorageReader(self.path).read_metadata()

    def test_metadata_is_what_dcp_made(self):
        saved = self.save(example(1))
        again = holdfast.dcp.StorageReader(self.path).read_metadata()
        self.assertEqual(again.state_dict_metadata, saved.state_dict_metadata)
        self.assertEqual(again.planner_data, saved.planner_data)
        self.assertEqual(again.storage_data, saved.storage_data)

    def test_parts_of_a_state_and_states_made_from_the_metadata(self):
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
        self.save(example(1))
        self.assert_equal(self.load({"half": torch.zeros(6, 8).half()}), {"half": example(1)["half"]})
        made = _load_state_dict_from_keys(storage_reader=holdfast.dcp.StorageReader(self.path))
        want = example(1)
        del want["nested"]["nothing"]  # dcp itself drops dictionaries that are empty
        self.assert_equal(made, want)

    def test_a_view_is_filled_and_what_is_around_it_is_not(self):
        whole = torch.zeros(4, 4)
        self.save({"a": torch.ones(2, 2)})
        self.load({"a": whole[1:3, ::2]})
        self.assertEqual((whole.sum().item(), whole[1:3, ::2].sum().item()), (4, 4))

    def test_large_tensors_in_pieces_whole_and_not_contiguous(self):
        big = torch.arange(3_000_001, dtype=torch.float64)
        self.save({"big": big, "wide": big[:3_000_000].view(3000, 1000)})
        self.assertGreater(len(holdfast.dcp.StorageReader(self.path).read_metadata().storage_data), 1)
        state = self.load({"big": torch.zeros_like(big), "wide": torch.zeros(1000, 3000, dtype=torch.float64).t()})
        self.assertTrue(torch.equal(state["big"], big))
        self.assertTrue(torch.equal(state["wide"], big[:3_000_000].view(3000, 1000)))
        self.assertTrue(torch.equal(self.load({"big": torch.zeros(3_000_001)})["big"], big.float()))

    def test_model_and_optimizer_go_on_alike(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def make(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
            return model, torch.optim.AdamW(model.parameters(), lr=0.01)

        def train(model, optimizer, steps):
            for step in steps:
                torch.manual_seed(step)
                optimizer.zero_grad()
                model(torch.randn(6, 5)).square().sum().backward()
                optimizer.step()
        straight, again = make(1), make(2)
        train(*straight, range(3))
        model_state, optimizer_state = get_state_dict(*straight)
        self.save({"model": model_state, "optimizer": optimizer_state, "random": torch.get_rng_state()})
        train(*straight, range(3, 6))
        model_state, optimizer_state = get_state_dict(*again)
        state = self.load({"model": model_state, "optimizer": optimizer_state, "random": torch.get_rng_state()})
        set_state_dict(*again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        train(*again, range(3, 6))
        self.assert_equal(again[0].state_dict(), dict(straight[0].state_dict()))

    def test_paths_come_from_the_constructor_or_the_call(self):
        writer, reader = holdfast.dcp.StorageWriter(), holdfast.dcp.StorageReader(threads=3)
        with self.refused(HoldfastError, "give it a path"):
            dcp.save({"n": 1}, storage_writer=writer)
        for n in (1, 2):
            dcp.save({"n": n}, checkpoint_id=f"{self.path}{n}", storage_writer=writer)
        for n in (1, 2):
            state = {"n": 0}
            dcp.load(state, checkpoint_id=f"{self.path}{n}", storage_reader=reader)
            self.assertEqual(state["n"], n)

    def test_planners_of_the_user(self):
        class Halves(DefaultSavePlanner):
            def transform_object(self, write_item, object):
                if isinstance(object, torch.Tensor):
                    object = object.half()
                return super().transform_object(write_item, object + 1 if type(object) is int else object)

        class Strange(DefaultSavePlanner):
            def transform_object(self, write_item, object):
                return io.BytesIO(b"of its own") if type(object) is int else object
        self.save({"w": torch.ones(3), "n": 5}, planner=Halves())
        state = self.load({"w": torch.zeros(3), "n": 0})
        self.assertEqual((state["w"].tolist(), state["n"]), ([1, 1, 1], 6))
        with self.refused(StateMismatch, "^n: .*Strange gives bytes that are no plain value"):
            self.save({"n": 5}, planner=Strange())

    def test_cached_plans_never_write_into_files_of_before(self):
        for n in range(1, 4):
            planner = DefaultSavePlanner(enable_plan_caching=True)
            before = set(self.data_files()) if n > 1 else set()
            self.save({"n": n, "w": torch.full((4,), float(n))}, planner=planner)
            self.assertFalse(before & set(self.data_files()))
            self.assertEqual(self.load({"n": 0, "w": torch.zeros(4)})["w"].tolist(), [n] * 4)

    def test_partial_loads(self):
        self.save({"a": torch.ones(2)})
        state = {"a": torch.zeros(2), "b": torch.zeros(2)}
        self.load(state, planner=DefaultLoadPlanner(allow_partial_load=True))
        self.assertEqual((state["a"].tolist(), state["b"].tolist()), ([1, 1], [0, 0]))


class OtherVersions(Case):
    """What older versions of torch call, by hand: positional arguments only, no look for metadata of single ranks."""

    def saved(self, state):
        planner, writer = DefaultSavePlanner(), holdfast.dcp.StorageWriter(self.path)
        planner.set_up_planner(state, is_coordinator=True)
        writer.set_up_storage_writer(True)
        plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
        plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
        results = writer.write_data(plan, planner)
        results.wait()
        writer.finish(metadata=metadata, results=[results.value()])

    def loaded(self, state):
        planner, reader = DefaultLoadPlanner(), holdfast.dcp.StorageReader(self.path)
        metadata = reader.read_metadata()
        planner.set_up_planner(state, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        reader.read_data(planner.finish_plan(reader.prepare_global_plan([plan])[0]), planner).wait()
        return state

    def test_the_pair_by_hand(self):
        self.saved({"w": torch.ones(3), "n": 5})
        state = self.loaded({"w": torch.zeros(3), "n": 0})
        self.assertEqual((state["w"].tolist(), state["n"]), ([1, 1, 1], 5))
        os.truncate(os.path.join(self.path, "holdfast-dcp.json"), 100)
        with quiet(), self.assertRaisesRegex(StateDamaged, "holdfast-dcp.json: does not end with its digest"):
            self.loaded({"n": 0})

    def test_fields_that_a_version_does_not_have(self):
        import dataclasses
        from holdfast import _dcp_torch

        @dataclasses.dataclass
        class Properties:
            dtype: torch.dtype = torch.float32
            layout: torch.layout = torch.strided
            requires_grad: bool = False
            memory_format: torch.memory_format = torch.contiguous_format
            pin_memory: bool = False
        self.saved({"w": torch.ones(3)})
        with mock.patch.object(_dcp_torch, "TensorProperties", Properties):
            metadata = holdfast.dcp.StorageReader(self.path).read_metadata()
        self.assertEqual(metadata.state_dict_metadata["w"].properties, Properties())
        self.assertIsNone(_dcp_torch._properties_to_json(Properties())["strides"])

    def test_both_go_to_another_process(self):
        self.saved({"n": 5})
        reader = pickle.loads(pickle.dumps(holdfast.dcp.StorageReader(self.path)))
        state = {"n": 0}
        dcp.load(state, storage_reader=reader)
        self.assertEqual(state["n"], 5)
        pickle.loads(pickle.dumps(holdfast.dcp.StorageWriter(self.path)))


class Refusals(Case):
    def test_what_cannot_be_saved_is_named_and_nothing_is_left(self):
        for value, part in (({1, 2}, "^s.x: is a builtins.set"), (object(), "^s.x: is a builtins.object"),
                            ((lambda: 0), "^s.x: is a builtins.function"), (torch.float32, "^s.x: is a torch.dtype"),
                            (torch.eye(3).to_sparse(), "^s.x: is a torch.sparse_coo"),
                            (torch.empty(3, device="meta"), "^s.x: is on the meta device")):
            with self.refused(StateMismatch, part):
                self.save({"big": torch.ones(1 << 20), "s": {"x": value}})
            self.assertEqual(os.listdir(self.path), [])
        with self.refused(StateMismatch, "^s/t: is a torch.Tensor.*flatten_state_dict"):
            self.save({"s": {"t": torch.ones(1)}}, planner=DefaultSavePlanner(flatten_state_dict=False))

    def test_what_is_no_checkpoint(self):
        with self.refused(StateUnreadable, "is no complete checkpoint: No such file"):
            self.load({"a": 1})
        dcp.save({"a": 1}, checkpoint_id=self.path)
        with self.refused(StateUnreadable, "FileSystemReader reads it"):
            self.load({"a": 1})
        with quiet(), self.assertRaisesRegex(StateUnreadable, "FileSystemReader reads it"):
            holdfast.dcp.StorageReader(self.path).read_metadata().state_dict_metadata

    def test_without_coordination(self):
        with self.assertRaisesRegex(HoldfastError, "use_collectives=False is not supported"):
            self.save({"a": 1}, use_collectives=False)

    def test_paths_that_cannot_be_written(self):
        os.makedirs(self.path)
        file = os.path.join(self.path, "file")
        with open(file, "wb"):
            pass
        with self.refused(HoldfastError, "file: .*save to a path that is a directory"):
            self.save({"a": 1}, path=file)
        with self.refused(HoldfastError, "save to a path that is a directory"):
            self.save({"a": 1}, path=os.path.join(file, "below"))
        with self.refused(HoldfastError, "^/proc/holdfast"):
            self.save({"a": 1}, path="/proc/holdfast")

    @unittest.skipUnless(os.geteuid() == 0, "mounts a small file system: needs root")
    def test_a_full_disk(self):
        os.makedirs(self.path)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", self.path], check=True)
        self.addCleanup(subprocess.run, ["umount", self.path], check=True)
        self.save({"w": torch.ones(1 << 20)})  # 4 MiB
        before = sorted(os.listdir(self.path))
        with self.refused(HoldfastError, "No space left on device; free space"):
            self.save({"w": torch.zeros(SMALL_DISK_MB << 18)})
        self.assertEqual(sorted(os.listdir(self.path)), before)
        self.assertEqual(self.load({"w": torch.zeros(1 << 20)})["w"].sum().item(), 1 << 20)

    @unittest.skipUnless(os.geteuid() == 0, "becomes another user: needs root")
    def test_a_directory_of_somebody_else(self):
        os.makedirs(self.path)
        child = os.fork()
        if child == 0:
            with contextlib.redirect_stderr(io.StringIO()):
                os.setuid(65534)
                try:
                    self.save({"a": 1})
                except dcp.CheckpointException as error:
                    os._exit(7 if "must be allowed to write there" in str(error.failures[0][0]) else 8)
            os._exit(9)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)


class Damage(Case):
    def setUp(self):
        super().setUp()
        self.state = {"w": torch.arange(5_000_000, dtype=torch.float32), "n": [1, {"a": "text"}], "v": torch.ones(7)}
        self.save(self.state)

    def target(self):
        return {"w": torch.zeros(5_000_000), "n": [0, {"a": ""}], "v": torch.zeros(7)}

    def flip(self, path, at):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << (at % 8))]))

    def test_a_flipped_bit_in_any_file_is_found_before_it_is_used(self):
        draw = random.Random(SEED)
        for name in sorted(os.listdir(self.path)):
            path, kind = os.path.join(self.path, name), "item '" if name.endswith(".data") else ""
            size = os.path.getsize(path)
            for at in [0, size - 1, *(draw.randrange(size) for _ in range(10))]:
                self.flip(path, at)
                target = self.target()
                with self.refused(StateDamaged, f"{name}: {kind}.*digest"):
                    self.load(target)
                # What was filled was right: nothing unverified ever reaches the state.
                filled = target["w"][target["w"] != 0]
                self.assertTrue(torch.equal(filled, self.state["w"][filled.long()]))
                self.flip(path, at)
        self.assert_equal(self.load(self.target()), self.state)

    def test_a_flipped_bit_where_only_a_part_is_wanted(self):
        for path in self.data_files():
            self.flip(path, os.path.getsize(path) // 2)
        with self.refused(StateDamaged, r"\.data: item 'w'.*digest"):
            self.load({"w": torch.zeros(2, 5_000_000).t()[:, 0]})

    def test_files_that_are_short_or_gone(self):
        for path in self.data_files():
            with open(path, "rb") as file:
                data = file.read()
            os.truncate(path, len(data) - 1)
            with self.refused(StateDamaged, f"{os.path.basename(path)}: has {len(data) - 1} bytes, should have"):
                self.load(self.target())
            os.unlink(path)
            with self.refused(StateDamaged, f"{os.path.basename(path)}: No such file"):
                self.load(self.target())
            with open(path, "wb") as file:
                file.write(data)
        self.assert_equal(self.load(self.target()), self.state)


class Asynchronous(Case):
    def test_the_state_may_change_again_while_it_is_saved(self):
        import torch.distributed as dist
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        self.addCleanup(dist.destroy_process_group)
        state = {"w": torch.ones(1 << 20), "n": 1}
        future = dcp.async_save(state, storage_writer=holdfast.dcp.StorageWriter(self.path))
        state["w"].zero_()
        future.result(timeout=DEADLINE_S)
        loaded = self.load({"w": torch.zeros(1 << 20), "n": 0})
        self.assertEqual((loaded["w"].sum().item(), loaded["n"]), (1 << 20, 1))
        failed = dcp.async_save({"x": {1}}, storage_writer=holdfast.dcp.StorageWriter(self.path))
        with self.assertRaisesRegex(dcp.CheckpointException, "x: is a builtins.set"):
            failed.result(timeout=DEADLINE_S)

    def test_in_another_process(self):
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        self.addCleanup(dist.destroy_process_group)
        future = dcp.async_save({"w": torch.ones(5), "n": 4}, storage_writer=holdfast.dcp.StorageWriter(self.path),
                                async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        future.result(timeout=DEADLINE_S)
        loaded = self.load({"w": torch.zeros(5), "n": 0})
        self.assertEqual((loaded["w"].tolist(), loaded["n"]), ([1] * 5, 4))

    def test_without_a_process_group(self):
        future = dcp.async_save({"n": 3}, storage_writer=holdfast.dcp.StorageWriter(self.path), no_dist=True)
        future.result(timeout=DEADLINE_S)
        self.assertEqual(self.load({"n": 0})["n"], 3)


class Killed(Case):
    """kill -9 at seeded moments of saves that replace one another in one directory."""

    SHAPE = (6, 500_000)

    def state(self, n):
        return {"w": [torch.full((self.SHAPE[1],), float(n)) for _ in range(self.SHAPE[0])], "n": n}

    def one(self, n, delay):
        """Whether the save of `n` ended before it was killed."""
        child = os.fork()
        if child == 0:
            try:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
                self.save(self.state(n))
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_the_old_or_the_new_checkpoint_is_whole(self):
        draw = random.Random(SEED)
        self.save(self.state(0))  # what happens once for a process
        begin = time.monotonic()
        self.assertTrue(self.one(1, DEADLINE_S))
        length, current, ends = time.monotonic() - begin, 1, {"killed": 0, "replaced": 0}
        for n in range(2, KILLS + 2):
            ended = self.one(n, draw.uniform(0, 1.6 * length))
            loaded = self.load(self.state(0))
            self.assertIn(loaded["n"], (current, n))
            self.assertTrue(all(bool((part == loaded["n"]).all()) for part in loaded["w"]), f"seed {SEED}: a mix")
            if ended:
                self.assertEqual(loaded["n"], n)
            ends["replaced" if loaded["n"] == n else "killed"] += 1
            current = loaded["n"]
        self.assertGreater(min(ends.values()), 0, ends)
        self.save(self.state(99))
        named = {os.path.basename(path) for path in self.data_files()}
        self.assertEqual(set(os.listdir(self.path)), named | {"holdfast-dcp.json"})
        self.assertLessEqual(len(named), 8)
        self.assertEqual(self.load(self.state(0))["n"], 99)


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # dcp warns of each call without a process group
