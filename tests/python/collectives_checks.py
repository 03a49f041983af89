# SPDX-License-Identifier: Apache-2.0
"""holdfast.record_collectives() with a real PyTorch in one process and no keeper; run by tests/long/collectives_test.py
in a Python that has torch. What goes to the C library goes to `Native` instead.

`collectives_checks.py RANK STORE` is one of two ranks that train with FSDP, of which rank 1 then ends without a word;
rank 0 prints what was recorded."""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

SOURCE = os.environ["HOLDFAST_SOURCE_DIR"]
sys.path[:0] = [os.path.join(SOURCE, "client", "python")]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from holdfast import _collectives, _torch_hooks  # noqa: E402
from holdfast.errors import HoldfastError  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

DEADLINE_S = 60
NAMES = {number: name for name, number in _collectives.KINDS.items()}


class Native:
    """What a session does for a Recording."""

    def __init__(self, groups_max=8):
        self.groups, self.begun, self.ended = [], [], {}
        self._groups_max, self._lock = groups_max, threading.Lock()

    def add_group(self, name, ranks, size):
        if len(self.groups) == self._groups_max:
            raise HoldfastError("too many groups")
        self.groups.append((name, ranks, size))
        return len(self.groups)

    def collective_calls(self):
        return self._begin, self._end

    def _begin(self, group, kind, dtype, peer, nbytes):
        with self._lock:
            self.begun.append((group, NAMES[kind], dtype, peer, nbytes))
            return len(self.begun)

    def _end(self, handle, outcome):
        with self._lock:
            assert handle not in self.ended, "ended twice"
            self.ended[handle] = outcome

    @property
    def kinds(self):
        return [kind for _, kind, _, _, _ in self.begun]


class Job:
    attached = True

    def __init__(self, native, room=True):
        self.native, self._room = native, room

    def records_collectives(self):
        return self._room


def wait_until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("what should come did not")
        time.sleep(0.002)


class Work:
    """A handle as NCCL's: wait() returns before the device is done, and only is_completed() tells."""

    def __init__(self):
        self.completed = False

    def is_completed(self):
        return self.completed

    def get_future(self):
        raise RuntimeError("none")


class Case(unittest.TestCase):
    def setUp(self):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        self.addCleanup(lambda: dist.is_initialized() and dist.destroy_process_group())
        self.native = Native()
        self.ones = torch.ones(10)

    def record(self, native=None):
        recording = _collectives.start(Job(native or self.native))
        self.addCleanup(recording.stop)
        self.assertTrue(recording.active)
        return recording

    def wait_ended(self, outcomes):
        wait_until(lambda: len(self.native.ended) == len(outcomes))
        self.assertEqual([self.native.ended[handle + 1] for handle in range(len(outcomes))], outcomes)


class Hooks(Case):
    def test_every_kind_with_its_size_and_root(self):
        self.record()
        ones = self.ones
        dist.all_reduce(ones)
        dist.broadcast(ones, 0)
        dist.reduce(ones, 0)
        dist.all_gather([torch.zeros(10)], ones)
        dist.all_gather_into_tensor(torch.zeros(10), ones.double().float())
        dist.reduce_scatter_tensor(torch.zeros(10), ones)
        dist.reduce_scatter(torch.zeros(10), [ones])
        dist.all_to_all_single(torch.zeros(10), ones)
        dist.gather(ones, [torch.zeros(10)], 0)
        dist.scatter(ones, [torch.zeros(10)], 0)
        dist.barrier()
        self.assertEqual(self.native.kinds, ["all_reduce", "broadcast", "reduce", "all_gather", "all_gather",
                                             "reduce_scatter", "reduce_scatter", "all_to_all", "gather", "scatter",
                                             "barrier"])
        self.assertEqual(self.native.begun[0], (1, "all_reduce", 1, -1, 40))
        self.assertEqual(self.native.begun[1], (1, "broadcast", 1, 0, 40))
        self.assertEqual(self.native.begun[-1], (1, "barrier", 0, -1, 0))
        self.wait_ended([_collectives.FINISHED] * 11)

    def test_operations_that_cpp_starts(self):
        self.record()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 3))
        before = len(self.native.begun)
        model(torch.ones(2, 10)).sum().backward()
        buckets = [one for one in self.native.begun[before:] if one[1] == "all_reduce"]
        self.assertEqual(buckets, [(1, "all_reduce", 1, -1, 4 * 33)])
        import torch.distributed._functional_collectives as functional
        functional.all_reduce(self.ones, "sum", dist.group.WORLD).sum()
        self.assertEqual(self.native.begun[-1][1:], ("all_reduce", 1, -1, 40))

    def test_groups_of_before_and_after(self):
        early = dist.new_group([0])
        self.record()
        late = dist.new_group([0], group_desc="late")
        for group in (late, early, late):
            dist.all_reduce(self.ones, group=group)
        self.assertEqual([group for group, *_ in self.native.begun], [1, 2, 1])
        self.assertEqual([group[1:] for group in self.native.groups], [([0], 1), ([0], 1)])
        self.assertTrue(self.native.groups[0][0].endswith(" late"), self.native.groups)
        self.assertNotEqual(self.native.groups[0][0], self.native.groups[1][0])

    def test_recording_before_the_first_group(self):
        dist.destroy_process_group()
        self.record()
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        dist.all_reduce(self.ones)
        self.assertEqual(self.native.kinds, ["all_reduce"])

    def test_an_operation_that_raises_is_over(self):
        self.record()
        with self.assertRaises(RuntimeError):
            dist.all_gather_into_tensor(torch.zeros(7), self.ones)
        dist.all_reduce(self.ones)
        self.wait_ended([_collectives.FAILED, _collectives.FINISHED])

    def test_groups_that_are_destroyed_are_let_go(self):
        recording = self.record()
        group = dist.new_group([0])
        dist.all_reduce(self.ones, group=group)
        hooked = len(recording._hooks._hooked)
        dist.destroy_process_group(group)
        del group
        dist.new_group([0])
        self.assertEqual(len(recording._hooks._hooked), hooked)

    def test_stop_takes_everything_out(self):
        wait, register = c10d.Work.wait, dist.distributed_c10d._register_process_group
        with self.record() as recording:
            self.assertIsNot(c10d.Work.wait, wait)
            dist.all_reduce(self.ones)
        self.assertFalse(recording.active)
        self.assertIs(c10d.Work.wait, wait)
        self.assertIs(dist.distributed_c10d._register_process_group, register)
        dist.all_reduce(self.ones)
        dist.all_reduce(self.ones, group=dist.new_group([0]))
        self.assertEqual(self.native.kinds, ["all_reduce"])
        self.wait_ended([_collectives.FINISHED])
        self.assertFalse(recording.watcher._thread.is_alive())
        recording.stop()
        again = self.record()
        self.assertIsNot(again, recording)
        dist.all_reduce(self.ones)
        self.assertEqual(len(self.native.begun), 2)

    def test_the_second_call_hooks_nothing(self):
        self.assertIs(self.record(), self.record())
        dist.all_reduce(self.ones)
        self.assertEqual(self.native.kinds, ["all_reduce"])

    def test_a_full_table_warns_and_the_operations_work(self):
        self.native = Native(groups_max=0)
        self.record()
        with self.assertWarnsRegex(RuntimeWarning, "too many groups"):
            dist.all_reduce(self.ones)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dist.all_reduce(self.ones)
        self.assertEqual(self.native.begun, [])

    def test_a_hook_that_fails_fails_no_operation(self):
        recording = self.record()

        def broken(*arguments):
            raise OSError("broken")
        recording._begin = broken
        with self.assertWarnsRegex(RuntimeWarning, "not recorded any more: OSError: broken"):
            dist.all_reduce(self.ones)
        self.assertEqual(self.ones[0], 1)
        self.assertFalse(recording.active)

    def test_warnings_that_are_errors_fail_no_operation(self):
        recording = self.record(Native(groups_max=0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dist.all_reduce(self.ones)
            recording.give_up(OSError("broken"))
        self.assertFalse(recording.active)

    def test_the_child_of_a_fork_records_nothing(self):
        self.record()
        child = os.fork()
        if child == 0:  # Gloo's threads are not here: an operation would never end
            os._exit(_collectives._current.active)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        dist.all_reduce(self.ones)
        self.assertEqual(len(self.native.begun), 1)


class OldPyTorch(Case):
    """Without hooks of process groups."""

    def setUp(self):
        super().setUp()
        names = ("register_pre_hook", "register_post_hook")
        saved = {name: getattr(c10d.ProcessGroup, name) for name in names}
        for name in names:
            delattr(c10d.ProcessGroup, name)
        self.addCleanup(lambda: [setattr(c10d.ProcessGroup, name, method) for name, method in saved.items()])

    def test_what_a_script_starts_is_recorded(self):
        plain = c10d.ProcessGroup.allreduce
        with self.assertWarnsRegex(RuntimeWarning, "have no hooks.*DDP"):
            recording = self.record()
        dist.all_reduce(self.ones)
        dist.broadcast(self.ones, 0)
        dist.all_gather_into_tensor(torch.zeros(10), self.ones)
        dist.reduce_scatter_tensor(torch.zeros(10), self.ones)
        dist.barrier(group=dist.new_group([0]))
        self.assertEqual(self.native.begun, [
            (1, "all_reduce", 1, -1, 40), (1, "broadcast", 1, 0, 40), (1, "all_gather", 1, -1, 40),
            (1, "reduce_scatter", 1, -1, 40), (2, "barrier", 0, -1, 0)])
        self.wait_ended([_collectives.FINISHED] * 5)
        recording.stop()
        self.assertIs(c10d.ProcessGroup.allreduce, plain)

    def test_an_operation_that_raises_is_over(self):
        with self.assertWarns(RuntimeWarning):
            self.record()
        with self.assertRaises(RuntimeError):
            dist.all_gather_into_tensor(torch.zeros(7), self.ones)
        self.wait_ended([_collectives.FAILED])


class Watching(unittest.TestCase):
    def setUp(self):
        self.native = Native()
        self.watcher = _collectives.Watcher(self.native._end)
        self.addCleanup(self.watcher.stop)

    def test_on_a_device_the_end_is_looked_for(self):
        work = Work()
        self.watcher.add(_collectives.Running(1, on_host=False), work)
        self.watcher.sweep()
        self.assertEqual(self.native.ended, {})
        work.completed = True
        wait_until(lambda: self.native.ended)
        self.assertEqual(self.native.ended, {1: _collectives.FINISHED})
        self.assertIsNone(self.watcher.find(work))

    def test_what_never_ends_is_bounded(self):
        for on_host, most in ((True, _collectives.WATCHED_BLIND_MAX), (False, _collectives.WATCHED_MAX)):
            native = Native()
            watcher = _collectives.Watcher(native._end)
            self.addCleanup(watcher.stop)
            for handle in range(1, most + 3):
                watcher.add(_collectives.Running(handle, on_host), Work())
            self.assertEqual(native.ended, {1: _collectives.END_UNSEEN, 2: _collectives.END_UNSEEN})

    def test_what_runs_at_the_stop_stays_running(self):
        work = Work()
        self.watcher.add(_collectives.Running(1, on_host=False), work)
        self.watcher.stop()
        self.assertEqual(self.native.ended, {})


class Outside(unittest.TestCase):
    def test_an_agent_without_room_warns_and_nothing_is_hooked(self):
        with self.assertWarnsRegex(RuntimeWarning, "older than this package"):
            recording = _collectives.start(Job(Native(), room=False))
        self.assertFalse(recording.active)

    def test_names_of_operations(self):
        for name, kind in (("ALLREDUCE_COALESCED", "all_reduce"), ("ALLGATHER_INTO_TENSOR_COALESCED", "all_gather"),
                           ("REDUCE_SCATTER_BASE", "reduce_scatter"), ("recv_anysource", "recv"), ("SPLIT", "other"),
                           ("alltoall_base", "all_to_all"), ("_allgather_base", "all_gather"), ("REDUCE", "reduce")):
            self.assertEqual(NAMES[_torch_hooks.kind_of(name)], kind, name)

    def test_without_an_agent_it_is_a_no_op(self):
        script = ("import holdfast, torch, torch.distributed as dist\n"
                  "with holdfast.record_collectives() as recording:\n"
                  "    dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
                  "    dist.all_reduce(torch.ones(3))\n"
                  "    dist.destroy_process_group()\n"
                  "print(recording.active)\n")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        environment["PYTHONPATH"] = os.path.join(SOURCE, "client", "python")
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True,
                              timeout=DEADLINE_S * 5, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "False\n"), done.stderr)
        self.assertEqual(done.stderr.count("RuntimeWarning: holdfast"), 1, done.stderr)


def be_rank(rank, path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(path, 2))
    native = Native()
    _collectives.start(Job(native))
    model = torch.nn.Linear(10, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.ones(2, 10)).sum().backward()
    dist.barrier()
    trained = len(native.begun)
    if rank == 1:
        os._exit(0)
    wait_until(lambda: len(native.ended) == trained)
    for asynchronous in (False, True):
        try:
            dist.all_reduce(torch.ones(4), async_op=asynchronous)
        except RuntimeError:
            continue
    wait_until(lambda: len(native.ended) == trained + 2)
    outcomes = [native.ended[i + 1] for i in range(trained + 2)]
    print(json.dumps({"kinds": native.kinds, "outcomes": outcomes}), flush=True)
    os._exit(0)


class Pair(unittest.TestCase):
    def test_fsdp_and_operations_that_fail(self):
        with tempfile.TemporaryDirectory() as directory:
            ranks = [subprocess.Popen([sys.executable, "-B", __file__, str(rank), os.path.join(directory, "store")],
                                      stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
                     for rank in (0, 1)]
            out = [rank.communicate(timeout=DEADLINE_S * 5)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0])
        seen = json.loads(out[0])
        self.assertIn("all_gather", seen["kinds"])
        self.assertIn("reduce_scatter", seen["kinds"])
        self.assertEqual(seen["kinds"][-3:], ["barrier", "all_reduce", "all_reduce"])
        trained = len(seen["kinds"]) - 2
        self.assertEqual(seen["outcomes"], [_collectives.FINISHED] * trained + [_collectives.FAILED] * 2)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("0", "1"):
        be_rank(int(sys.argv[1]), sys.argv[2])
    unittest.main()
