# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's collective operations on their way into the recorder (docs/formats/rank.md, "Collectives"):
what begins, and when it has ended. Where the operations come from is _torch_hooks.py.

Everything here runs inside somebody's training step: nothing raises, nothing waits for a device.
"""
import atexit
import sys
import threading
import warnings

from .errors import HoldfastError

KINDS = {"other": 0, "all_reduce": 1, "all_gather": 2, "reduce_scatter": 3, "broadcast": 4, "all_to_all": 5, "send": 6,
         "recv": 7, "barrier": 8, "reduce": 9, "gather": 10, "scatter": 11}
FINISHED, FAILED, END_UNSEEN = 1, 2, 3
POLL_S = 0.002         # between two looks at operations that run
IDLE_WAIT_S = 5        # between two looks whether there are any, when nobody calls
STOP_WAIT_S = 5
WATCHED_MAX = 1024     # handles kept; each holds on to its tensors
WATCHED_BLIND_MAX = 64  # of those that cannot tell that they have ended


def warn(text):
    """For hooks: an operation must not fail because its program makes errors of warnings."""
    try:
        warnings.warn(f"holdfast: {text}", RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(f"holdfast: {text}", file=sys.stderr, flush=True)


class Running:
    """An operation that has begun: what hf_collective_begin gave, and whether a wait() for it ends with it (on a GPU
    it ends before)."""

    __slots__ = ("handle", "on_host", "work", "future")

    def __init__(self, handle, on_host):
        self.handle, self.on_host = handle, on_host
        self.work = self.future = None

    def look(self):
        """FINISHED, FAILED, or 0: still running, as far as anybody can tell."""
        try:
            if self.future is None:
                return FINISHED if self.work.is_completed() else 0
            if not self.future.done():
                return 0
        except Exception:  # a backend that cannot say
            return 0
        try:
            self.future.value()
        except Exception:
            return FAILED
        return FINISHED


class Watcher:
    """Sees operations end: whoever waits for one tells it, and a thread looks at the rest. A thread and no callbacks of
    theirs: those would have the backend's own threads wait for the interpreter, and die with it at its end."""

    def __init__(self, end):
        self._end = end
        self._seeing, self._blind = {}, {}  # id of the work: Running; a single operation on them is atomic
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-collectives", daemon=True)
        self._thread.start()

    def add(self, running, work):
        running.work = work
        entries, most = self._seeing, WATCHED_MAX
        if running.on_host:
            try:
                running.future = work.get_future()
            except Exception:  # this backend has none for this operation: Gloo's reduce_scatter, send, recv
                entries, most = self._blind, WATCHED_BLIND_MAX
        entries[id(work)] = running
        if len(entries) > most:
            self._close_oldest(entries)
        if not self._wake.is_set():
            self._wake.set()

    def find(self, work):
        return self._seeing.get(id(work)) or self._blind.get(id(work))

    def close(self, running, outcome):
        key = id(running.work)
        # Only one of those who see it end finds it here.
        if self._seeing.pop(key, None) is running or self._blind.pop(key, None) is running:
            self._end(running.handle, outcome)

    def _close_oldest(self, entries):
        for running in list(entries.values())[:1]:
            self.close(running, running.look() or END_UNSEEN)

    def _run(self):
        while not self._stop.is_set():
            self._wake.wait(IDLE_WAIT_S)
            if not (self._seeing or self._blind):
                self._wake.clear()
                if not (self._seeing or self._blind):  # else one came between the two
                    continue
            self.sweep()
            self._stop.wait(POLL_S)

    def sweep(self):
        for entries in (self._seeing, self._blind):
            for running in list(entries.values()):
                outcome = running.look()
                if outcome:
                    self.close(running, outcome)

    def stop(self):
        """What has ended by now is noted; what still runs stays a running operation in the recorder, as it should."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAIT_S)
        self.sweep()
        self._seeing, self._blind = {}, {}


class Recording:
    """What record_collectives() gives. stop() takes the hooks out again; as a context manager its end does."""

    def __init__(self, native=None):
        self.active = False
        self.watcher = None
        self._native, self._hooks = native, None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()

    def start(self, hooks):
        self._begin, self._end = self._native.collective_calls()
        self.watcher = Watcher(self._end)
        self.active = True
        self._hooks = hooks(self)
        # A process group may outlive the interpreter; hooks that are still in it then would be called without one.
        atexit.register(self.stop)

    def stop(self):
        if self._hooks is None:
            return
        self.active = False
        hooks, self._hooks = self._hooks, None
        hooks.remove()
        self.watcher.stop()
        atexit.unregister(self.stop)

    def leave_to_parent(self):
        """In the child of a fork: the operations here are none of the rank's."""
        self.active = False

    def give_up(self, error):
        """A hook that fails must not fail the operation. Says so once."""
        if self.active:
            self.active = False
            warn(f"collectives are not recorded any more: {type(error).__name__}: {error}")

    # -- for the hooks

    def add_group(self, name, ranks, size):
        """The group's number, 0 when its operations are not recorded."""
        try:
            return self._native.add_group(name, ranks, size)
        except HoldfastError as error:
            warn(str(error))
            return 0

    def begin(self, group, kind, dtype, peer, nbytes, on_host):
        """A Running, or None when it is not recorded."""
        handle = self._begin(group, kind, dtype, peer, nbytes)
        return Running(handle, on_host) if handle else None

    def issued(self, running, work):
        """The call of the operation has returned; `work` is its handle, None when torch gives none."""
        if work is None:
            self._end(running.handle, FINISHED)
        else:
            self.watcher.add(running, work)

    def failed(self, running):
        self._end(running.handle, FAILED)


_current = Recording()


def start(job):
    """Hooks in once; the Recording that is in place."""
    global _current
    if _current.active or not job.attached:
        return _current
    problem = None if job.records_collectives() else "the agent of this node is older than this package"
    hooks = None
    if problem is None:
        hooks, problem = _find_hooks()
    if problem is not None:
        warnings.warn(f"holdfast: collectives are not recorded: {problem}", RuntimeWarning, stacklevel=3)
        return _current
    _current = Recording(job.native)
    _current.start(hooks)
    return _current


def _find_hooks():
    """(how to hook in, None) or (None, why not)."""
    try:
        import torch.distributed
        if not torch.distributed.is_available():
            return None, "this PyTorch is built without torch.distributed"
        from . import _torch_hooks
        return _torch_hooks.choose(), None
    except (ImportError, AttributeError) as error:
        return None, f"PyTorch cannot be hooked into ({error})"


def after_fork():
    _current.leave_to_parent()
