# SPDX-License-Identifier: Apache-2.0
"""How a Recording gets to see the operations of torch.distributed's process groups. Two ways, the better one first:

GroupHooks: c10d calls hooks of a process group around each operation that is dispatched on it, whoever starts it: the
script, DDP's reducer, FSDP, DTensors, compiled code.
Methods: the methods of class ProcessGroup are replaced. For a PyTorch whose process groups have no hooks; what C++
starts by itself is not seen.
"""
import threading
import warnings
import weakref

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from ._collectives import FAILED, FINISHED, KINDS
from ._torch import dtype_code

HOOK_ID = 0x686f6c6466617374  # "holdfast"; hooks of a process group are called in the order of their numbers
HOST_BACKENDS = ("gloo", "mpi")

# Names of c10d's operations without case, "_" and what says only in which form the tensors come.
_FAMILIES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
             "broadcast": "broadcast", "alltoall": "all_to_all", "send": "send", "recv": "recv", "barrier": "barrier",
             "reduce": "reduce", "gather": "gather", "scatter": "scatter"}
# Of class ProcessGroup. Not monitored_barrier: no other way knows it.
_METHODS = ("allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced",
            "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter",
            "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single",
            "reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier", "send",
            "recv", "recv_anysource", "reduce", "gather", "gather_into_tensor", "gather_single", "scatter")


def kind_of(name):
    """ALLGATHER_INTO_TENSOR_COALESCED, _allgather_base: all_gather's number."""
    plain = name.replace("_", "").lower()
    for family in sorted(_FAMILIES, key=len, reverse=True):
        if plain.startswith(family):
            return KINDS[_FAMILIES[family]]
    return KINDS["other"]


def total_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def choose():
    """What to call with a Recording."""
    if hasattr(c10d.ProcessGroup, "register_pre_hook") and hasattr(c10d.ProcessGroup, "register_post_hook"):
        return GroupHooks
    warnings.warn(f"holdfast: process groups of PyTorch {torch.__version__} have no hooks: collectives that a script "
                  "starts are recorded, those that DDP and other C++ code start are not", RuntimeWarning, stacklevel=4)
    return Methods


class Group:
    """A process group in the recorder; entered with its first operation, when it is whole."""

    __slots__ = ("number", "on_host")

    def __init__(self, recording, group):
        self.on_host = self._backend(group) in HOST_BACKENDS
        self.number = recording.add_group(self._name(group), self._ranks(group), group.size())

    @staticmethod
    def _backend(group):
        try:
            return dist.get_backend(group)
        except Exception:  # a group that torch.distributed does not know
            return None

    @staticmethod
    def _name(group):
        names = []
        for field in ("group_name", "group_desc"):
            try:
                names.append(str(getattr(group, field)))
            except Exception:  # older, or never set
                continue
        return " ".join(name for name in names if name not in ("", "undefined")) or "unnamed"

    @staticmethod
    def _ranks(group):
        try:
            return dist.get_process_group_ranks(group)
        except Exception:
            return None


class WorkWait:
    """Whoever waits for an operation on the host knows to the microsecond when it has ended; and for some of Gloo's
    that is the only way to know."""

    def __init__(self, watcher):
        self._plain = plain = c10d.Work.wait

        def wait(work, *args, **kwargs):
            running = watcher.find(work)
            if running is None:
                return plain(work, *args, **kwargs)
            try:
                result = plain(work, *args, **kwargs)
            except RuntimeError:
                watcher.close(running, FAILED)
                raise
            if running.on_host:
                watcher.close(running, FINISHED)
            return result
        self._ours = c10d.Work.wait = wait

    def remove(self):
        if c10d.Work.wait is self._ours:  # else somebody has hooked in over us, and calls us: we pass everything on
            c10d.Work.wait = self._plain


class GroupHooks:
    """Pre- and post-hooks in every process group that there is and that will be."""

    def __init__(self, recording):
        self._recording = recording
        self._kinds = {member: kind_of(name) for name, member in c10d.HookOpName.__members__.items()}
        self._hooked = []  # weak: a group that is destroyed goes, and takes its hooks with it
        self._wait = WorkWait(recording.watcher)
        self._register = distributed_c10d._register_process_group
        for group in list(distributed_c10d._world.pg_map):
            self.hook(group)

        def register(name, group):
            self._register(name, group)
            self.hook(group)
        self._ours = distributed_c10d._register_process_group = register

    def hook(self, group):
        if not self._recording.active or not isinstance(group, c10d.ProcessGroup):
            return
        before, after = self._pair(weakref.ref(group))
        try:
            group.register_pre_hook(HOOK_ID, before)
            group.register_post_hook(HOOK_ID, after)
        except Exception as error:
            self._recording.give_up(error)
            return
        self._hooked = [ref for ref in self._hooked if ref() is not None] + [weakref.ref(group)]

    def _pair(self, group_ref):
        recording, kinds, of_thread = self._recording, self._kinds, threading.local()
        groups = []

        def before(args):
            if not recording.active:
                return
            try:
                # One that has no end yet in this thread ended with an exception.
                raised, of_thread.running = getattr(of_thread, "running", None), None
                if raised is not None:
                    recording.failed(raised)
                if not groups:
                    groups.append(Group(recording, group_ref()))
                group = groups[0]
                of_thread.running = begin(recording, group, kinds.get(args.name, 0), args.input_tensors,
                                          args.output_tensors, args.root)
            except Exception as error:
                recording.give_up(error)

        def after(args):
            try:
                running, of_thread.running = getattr(of_thread, "running", None), None
                if running is not None:
                    recording.issued(running, args.work)
            except Exception as error:
                recording.give_up(error)
        return before, after

    def remove(self):
        if distributed_c10d._register_process_group is self._ours:
            distributed_c10d._register_process_group = self._register
        self._wait.remove()
        for ref in self._hooked:
            group = ref()
            if group is not None:
                group.unregister_pre_hook(HOOK_ID)
                group.unregister_post_hook(HOOK_ID)
        self._hooked = []


def begin(recording, group, kind, inputs, outputs, root):
    """A Running, or None: the group is one too many."""
    if group.number == 0:
        return None
    tensor = inputs[0] if inputs else outputs[0] if outputs else None
    on_host = group.on_host if tensor is None else tensor.device.type == "cpu"
    return recording.begin(group.number, kind, 0 if tensor is None else dtype_code(tensor.dtype), root,
                           max(total_bytes(inputs), total_bytes(outputs)), on_host)


def flat_tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in flat_tensors(part)]
    return []


def root_of(kind, arguments):
    """Root, destination or source among the arguments of a method of ProcessGroup; -1: none."""
    for argument in arguments:
        if hasattr(argument, "rootRank"):
            return argument.rootRank
    if kind in (KINDS["send"], KINDS["recv"]) and len(arguments) > 2 and isinstance(arguments[1], int):
        return arguments[1]
    return -1


class Methods:
    """The methods of class ProcessGroup with a beginning and an end around them."""

    def __init__(self, recording):
        self._recording = recording
        self._groups = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._wait = WorkWait(recording.watcher)
        self._replaced = []
        for name in _METHODS:
            plain = getattr(c10d.ProcessGroup, name, None)
            if plain is not None:
                ours = self._around(plain, kind_of(name))
                setattr(c10d.ProcessGroup, name, ours)
                self._replaced.append((name, plain, ours))

    def _around(self, plain, kind):
        recording = self._recording

        def method(group, *args, **kwargs):
            running = self._begin(group, kind, (*args, *kwargs.values()))
            if running is None:
                return plain(group, *args, **kwargs)
            try:
                work = plain(group, *args, **kwargs)
            except BaseException:
                recording.failed(running)
                raise
            recording.issued(running, work)
            return work
        return method

    def _begin(self, group, kind, arguments):
        if not self._recording.active:
            return None
        try:
            tensors = [flat_tensors(argument) for argument in arguments]
            tensors = [some for some in tensors if some]
            inputs = max(tensors, key=total_bytes, default=[])
            return begin(self._recording, self._group(group), kind, inputs, [], root_of(kind, arguments))
        except Exception as error:
            self._recording.give_up(error)
            return None

    def _group(self, group):
        found = self._groups.get(group)
        if found is None:
            with self._lock:
                found = self._groups.get(group) or Group(self._recording, group)
                self._groups[group] = found
        return found

    def remove(self):
        self._wait.remove()
        for name, plain, ours in self._replaced:
            if getattr(c10d.ProcessGroup, name) is ours:
                setattr(c10d.ProcessGroup, name, plain)
        self._replaced = []
