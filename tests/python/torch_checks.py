# SPDX-License-Identifier: Apache-2.0
"""The Python package with real PyTorch tensors and no keeper; run by tests/long/python_torch_test.py in a Python that
has torch. DTensor's boxes are checked for every rank of a mesh in one process, with torch's fake process group."""
import ctypes
import os
import sys
import unittest
import warnings

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
sys.path[:0] = [os.path.join(SOURCE, "client", "python")]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from holdfast import _job, _tree, _values  # noqa: E402
from holdfast.errors import StateMismatch  # noqa: E402


class Store:
    """Stands for a snapshot of all ranks: whole tensors, put together from the boxes of all and cut again."""

    def __init__(self):
        self.boxes, self.rests = {}, {}

    def save(self, state, rank=0, world=1):
        for box in _tree.Flattener(rank, world).flatten(state):
            data = ctypes.string_at(box.address, box.nbytes)
            if box.name.endswith("#state"):
                self.rests[rank] = data
            elif box.replica == 0:
                self.boxes.setdefault(box.name, []).append((box, data))
        return self

    def cut(self, box):
        """The bytes of any box of a tensor, by its elements."""
        found, width = {}, None
        for held, data in self.boxes[box.name]:
            assert held.shape == box.shape, (held.shape, box.shape)
            count = 1
            for n in held.size:
                count *= n
            width = len(data) // count if count else width
            for i, place in enumerate(elements(held.offset, held.size)):
                assert place not in found, f"{box.name}: two boxes hold {place}"
                found[place] = data[i * width:(i + 1) * width]
        return b"".join(found[place] for place in elements(box.offset, box.size))

    def load(self, state, rank=0, world=1):
        filler = _tree.Filler(rank, world)
        filler.plan(state, _values.decode(self.rests[rank if rank in self.rests else 0]))
        for box in filler.boxes:
            data = self.cut(box)
            assert len(data) == box.nbytes, box.name
            ctypes.memmove(box.address, data, len(data))
        filler.apply()
        return state


def elements(offset, size):
    """Places of a box, the last dimension fastest."""
    places = [()]
    for begin, count in zip(offset, size):
        places = [place + (begin + i,) for place in places for i in range(count)]
    return places


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


class Tensors(unittest.TestCase):
    def example(self, seed):
        generator = torch.Generator().manual_seed(seed)
        base = torch.randn(6, 8, generator=generator)
        return {"plain": base.clone(), "transposed": base.clone().t(), "strided": base.clone()[::2, 1::3],
                "view": base.clone().view(2, 24)[1], "scalar": base[0, 0].clone(), "empty": torch.empty(0, 3),
                "half": base.half(), "bf16": base.bfloat16(), "double": base.double(), "flags": base > 0,
                "bytes": (base * 10).to(torch.uint8), "long": (base * 1000).long(), "short": (base * 10).short(),
                "fp8": base.to(torch.float8_e4m3fn), "complex": torch.complex(base, -base),
                "conjugated": torch.complex(base, base).conj(), "deep": torch.zeros((1,) * 10) + seed,
                "parameter": torch.nn.Parameter(base.clone()), "uint16": (base.abs() * 99).to(torch.uint16),
                "size": base.shape}

    def test_every_kind_comes_back_bit_for_bit(self):
        saved = Store().save(self.example(1))
        expected = self.example(1)
        for target in (self.example(2), {}):
            places = {key: value.data_ptr() for key, value in target.items() if isinstance(value, torch.Tensor)}
            saved.load(target)
            for key, value in expected.items():
                if not isinstance(value, torch.Tensor):
                    self.assertEqual(tuple(target[key]), tuple(value))
                    continue
                have, want = target[key].detach(), value.detach()
                if have.dtype in (torch.float8_e4m3fn, torch.uint16):
                    have, want = have.view(torch.uint8), want.view(torch.uint8)
                self.assertTrue(same(have, want), key)
                self.assertEqual(places.get(key, target[key].data_ptr()), target[key].data_ptr(), key)

    def test_a_view_is_filled_and_what_is_around_it_is_not(self):
        whole = torch.zeros(4, 4)
        Store().save({"a": torch.ones(2, 2)}).load({"a": whole[1:3, ::2]})
        self.assertEqual(whole.sum().item(), 4)
        self.assertEqual(whole[1:3, ::2].sum().item(), 4)

    def test_what_cannot_be_saved_is_named(self):
        for value, part in ((torch.eye(3).to_sparse(), "w: is a torch.sparse_coo"),
                            (torch.empty(3, device="meta"), "w: is on the meta device"),
                            (torch.float32, "w: is a torch.dtype")):
            with self.assertRaisesRegex(StateMismatch, part):
                Store().save({"w": value})

    def test_differences_are_named(self):
        for value, part in ((torch.zeros(4), "w: was saved as torch:float32"), (torch.zeros(3).half(), "w: was saved"),
                            (torch.zeros(3, dtype=torch.int32), "here is torch:int32")):
            with self.assertRaisesRegex(StateMismatch, part):
                Store().save({"w": torch.zeros(3)}).load({"w": value})


def model_and_optimizer(seed, kind=torch.optim.AdamW, **options):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    return model, kind(model.parameters(), **options)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()


class Numbers(unittest.TestCase):
    def test_a_loss_that_requires_a_gradient_is_read_without_a_warning(self):
        loss = torch.tensor([1.5], requires_grad=True).sum()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual([_job.as_number(value) for value in (loss, torch.tensor([2]), 3, 0.5)], [1.5, 2, 3, 0.5])
        self.assertNotEqual(_job.as_number(None), _job.as_number(None))


class Optimizers(unittest.TestCase):
    def test_an_optimizer_that_has_not_stepped_gets_its_state(self):
        for kind, options in ((torch.optim.AdamW, {"lr": 0.01}), (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
                              (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}), (torch.optim.Adagrad, {"lr": 0.01})):
            with self.subTest(kind=kind.__name__, **options):
                straight = model_and_optimizer(1, kind, **options)
                train(*straight, 3)
                saved = Store().save({"model": straight[0], "optimizer": straight[1]})
                train(*straight, 3, 3)
                again = model_and_optimizer(2, kind, **options)
                saved.load({"model": again[0], "optimizer": again[1]})
                train(*again, 3, 3)
                for name, value in straight[0].state_dict().items():
                    self.assertTrue(same(value, again[0].state_dict()[name]), name)

    def test_learning_rate_schedule_and_random_numbers(self):
        model, optimizer = model_and_optimizer(1, lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        train(model, optimizer, 2)
        schedule.step()
        schedule.step()
        saved = Store().save({"model": model, "optimizer": optimizer, "schedule": schedule,
                              "random": torch.get_rng_state()})
        expected = torch.rand(3)
        model, optimizer = model_and_optimizer(5, lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule, "random": torch.get_rng_state()}
        saved.load(state)
        torch.set_rng_state(state["random"])
        self.assertTrue(same(torch.rand(3), expected))
        self.assertEqual((schedule.last_epoch, optimizer.param_groups[0]["lr"]), (2, 0.1 * 0.1))


class Meshes(unittest.TestCase):
    """Every rank of a mesh, one after the other, in this process."""

    WORLD = 4

    def as_rank(self, rank, shape, placements, whole, world=WORLD):
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        self.addCleanup(lambda: dist.is_initialized() and dist.destroy_process_group())
        mesh = DeviceMesh("cpu", torch.arange(world).view(shape))
        local, coordinate = whole, mesh.get_coordinate()
        for dim, placement in enumerate(placements):
            if placement.is_shard():
                parts = list(torch.chunk(local, mesh.size(dim), dim=placement.dim))
                empty = parts[0].narrow(placement.dim, 0, 0)
                parts += [empty] * (mesh.size(dim) - len(parts))
                local = parts[coordinate[dim]]
        return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=whole.shape,
                                  stride=whole.stride())

    def everybody(self, shape, placements, whole, use, world=WORLD):
        for rank in range(world):
            use(rank, self.as_rank(rank, shape, placements, whole, world))
            dist.destroy_process_group()

    def layouts(self):
        from torch.distributed.tensor import Replicate, Shard
        return [((4,), [Shard(0)]), ((4,), [Shard(1)]), ((4,), [Replicate()]), ((2, 2), [Shard(0), Shard(1)]),
                ((2, 2), [Replicate(), Shard(0)]), ((2, 2), [Shard(1), Replicate()]), ((2, 2), [Shard(0), Shard(0)])]

    def test_boxes_tile_the_tensor_and_any_layout_reads_any_other(self):
        whole = torch.arange(7 * 6, dtype=torch.float32).view(7, 6)
        for save_shape, save_placements in self.layouts():
            store = Store()
            self.everybody(save_shape, save_placements, whole,
                           lambda rank, t: store.save({"w": t, "n": rank}, rank, self.WORLD))
            self.assertTrue(same(store.load({"w": torch.zeros(7, 6)}, 0, 1)["w"], whole), save_placements)
            for shape, placements in self.layouts():
                def check(rank, t):
                    want = t.to_local().clone()
                    t.to_local().zero_()
                    store.load({"w": t, "n": 0}, rank, self.WORLD)
                    self.assertTrue(same(t.to_local(), want), (save_placements, placements, rank))
                self.everybody(shape, placements, whole, check)

    def test_one_copy_of_what_is_replicated_is_written(self):
        from torch.distributed.tensor import Replicate, Shard
        replicas = []

        def note(rank, t):
            box = _tree.Flattener(rank, self.WORLD).flatten({"w": t})[0]
            replicas.append((rank, box.offset, box.replica))
        self.everybody((2, 2), [Replicate(), Shard(0)], torch.zeros(4), note)
        self.assertEqual(replicas, [(0, (0,), 0), (1, (2,), 0), (2, (0,), 1), (3, (2,), 1)])

    def test_a_dtensor_that_is_missing_is_made_on_a_mesh_of_the_state(self):
        from torch.distributed.tensor import DTensor, Shard
        store, whole = Store(), torch.arange(10.0).view(5, 2)
        self.everybody((4,), [Shard(0)], whole, lambda rank, t: store.save({"w": t, "m": {"w": t}}, rank, self.WORLD))

        def check(rank, t):
            state = store.load({"w": t, "m": {}}, rank, dist.get_world_size())
            self.assertIsInstance(state["m"]["w"], DTensor)
            self.assertEqual((state["m"]["w"].shape, state["m"]["w"].placements), (t.shape, t.placements))
            self.assertTrue(same(state["m"]["w"].to_local(), t.to_local()))
        self.everybody((4,), [Shard(0)], whole, check)
        self.everybody((3,), [Shard(0)], whole, check, 3)

    def test_partial_sums_are_refused(self):
        from torch.distributed.tensor import Partial
        t = self.as_rank(0, (4,), [Partial()], torch.zeros(3))
        with self.assertRaisesRegex(StateMismatch, "w: has the placement"):
            Store().save({"w": t}, 0, 4)


if __name__ == "__main__":
    unittest.main()
