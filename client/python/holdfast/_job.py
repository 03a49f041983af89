# SPDX-License-Identifier: Apache-2.0
"""A rank of a job: marks, snapshots and where it starts. `Detached` is the same without Holdfast."""
import errno
import math
import os
import time
import warnings

from . import _sources, _tree
from ._agreement import Agreement, Wish
from ._native import Session
from ._values import decode
from .errors import HoldfastError, StaleAttempt, StateDamaged, StateMismatch, StateUnreadable

PHASES = {"init": 1, "communicators": 2, "restore": 3, "first_step": 4, "data": 5, "forward": 6, "backward": 7,
          "reduce": 8, "optimizer": 9, "snapshot": 10, "evaluation": 11, "teardown": 12, "done": 13}
STOP_REASONS = {1: "cancel", 2: "preempt", 3: "drain", 4: "time limit", 5: "recovery"}
BUFFERS = 2
BUFFER_WAIT_MAX_S = 120  # a snapshot that must be taken waits for a free buffer
BUFFER_POLL_S = 0.01     # it is given back in shared memory, which wakes nobody
SMALL_ALIGN, LARGE_ALIGN, LARGE_BYTES = 64, 4096, 64 << 10  # of tensors in a buffer (base/rank/arena.h)
STEP_MAX = 1 << 62


class Phase:
    """What phase() gives: entered already; as a context manager it goes back to the phase before at its end."""

    __slots__ = ("_job", "_before")

    def __init__(self, job, before):
        self._job, self._before = job, before

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._job.enter(self._before)


class Detached:
    """A process that no agent started, or a child of one that was: everything is a harmless no-op."""

    rank, attempt, world_size, job_id, samples = 0, 0, 1, None, 0
    attached = False

    def __init__(self):
        for name, value in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
            if os.environ.get(value, "").isdigit():
                setattr(self, name, int(os.environ[value]))

    def enter(self, name):
        phase_number(name)

    def phase(self, name):
        phase_number(name)
        return Phase(self, "init")

    def step(self, n, samples, loss, grad_norm, lr, tokens_per_s):
        check_step(n)

    def should_stop(self):
        return None

    def prepare(self, state):
        pass

    def save(self, state, step, samples, persist):
        check_step(step)
        return False

    def load(self, state):
        return 0


def phase_number(name):
    try:
        return PHASES[name]
    except KeyError:
        raise HoldfastError(f"phase {name!r} is none of {', '.join(PHASES)}") from None


def check_step(step):
    if type(step) is not int or not 0 < step < STEP_MAX:
        raise HoldfastError(f"step {step!r} is not a whole number from 1")


def number_from_environment(name):
    text = os.environ.get(name, "") or "0"
    if not text.isdigit():
        raise HoldfastError(f"{name}={text}: is not a whole number")
    return int(text)


def buffer_bytes(boxes):
    """What one snapshot of them takes of a buffer."""
    at = 0
    for box in boxes:
        align = LARGE_ALIGN if box.nbytes >= LARGE_BYTES else SMALL_ALIGN
        at = -(-at // align) * align + box.nbytes
    return at


def as_number(value):
    """A float of what stands for one (a tensor of one element too); None as not a number."""
    if value is None:
        return math.nan
    item = getattr(value, "item", None)  # torch warns when a loss that requires a gradient is converted by float()
    return float(value if item is None else item())


class Cadence:
    """When a snapshot is due, and when a checkpoint. Pure."""

    def __init__(self, snapshot_every, persist_every):
        self._snapshot_every, self._persist_every = snapshot_every, persist_every
        self._snapshot = self._persist = 0
        self._owed = False

    def start(self, step):
        self._snapshot = self._persist = step

    def due(self, step):
        """(snapshot, persist). Without a number in the job every call is a snapshot and none is written."""
        persist = self._owed or self._passed(step, self._persist, self._persist_every)
        return persist or self._snapshot_every == 0 or self._passed(step, self._snapshot, self._snapshot_every), persist

    @staticmethod
    def _passed(step, last, every):
        return every > 0 and step // every > last // every

    def taken(self, step, persist):
        self._snapshot = step
        if persist:
            self._persist, self._owed = step, False

    def skipped(self, persist):
        """A checkpoint that was due is made up for at the next snapshot."""
        self._owed = self._owed or persist


class Job:
    attached = True

    def __init__(self, timeout_s):
        self._native = Session(int(timeout_s * 1000))
        native = self._native
        self.rank, self.attempt, self.world_size = native.rank, native.attempt, native.world_size
        self.job_id = f"j-{native.job}"
        self.samples = 0
        self._agreement = Agreement(native)
        self._cadence = Cadence(number_from_environment("HOLDFAST_SNAPSHOT_EVERY"),
                                number_from_environment("HOLDFAST_PERSIST_EVERY"))
        self._step = 0  # newest finished one
        self._phase = "init"
        self._saves_seen = native.save_requests()
        self._room = None  # (bytes, tensors) that the arena was asked for
        self._saves_together = False
        self._stop = 0
        self.enter("init")

    # -- marks

    def enter(self, name):
        self._phase = name
        self._native.enter_phase(phase_number(name), self._step + 1)

    def phase(self, name):
        before = self._phase
        self.enter(name)
        return Phase(self, before)

    def step(self, n, samples, loss, grad_norm, lr, tokens_per_s):
        check_step(n)
        if samples is not None:
            self.samples = int(samples)
        self._step = n
        self._native.finish_step(n, self.samples, as_number(loss), as_number(grad_norm), as_number(lr),
                                 as_number(tokens_per_s))
        self._check_attempt()

    def _check_attempt(self):
        if not self._native.attempt_is_current():
            raise StaleAttempt(f"a newer attempt of {self.job_id} has begun; attempt {self.attempt} has no say any "
                               "more")

    @property
    def native(self):
        return self._native

    def records_collectives(self):
        return self._native.records_collectives()

    def should_stop(self):
        reason = self._stop if self._saves_together else self._native.should_stop()
        return STOP_REASONS.get(reason, f"reason {reason}") if reason else None

    # -- save

    def prepare(self, state):
        self._make_room(self._flatten(state))

    def save(self, state, step, samples, persist):
        check_step(step)
        self._check_attempt()
        self._saves_together = True
        if self._room is None:
            self.prepare(state)
        wish = self._meet()
        self._stop = self._stop or wish.stop
        must = bool(wish.stop or wish.save or persist)
        due, to_store = self._cadence.due(step)
        to_store = to_store if persist is None else persist
        to_store = to_store or bool(wish.stop or wish.save)
        if not (due or must):
            return False
        if must and not wish.ready:
            wish = self._wait_for_buffer(step)
        if not wish.ready:
            return self._skip(to_store)
        return self._take(state, step, samples, to_store)

    def _take(self, state, step, samples, to_store):
        before = self._phase
        self.enter("snapshot")
        try:
            boxes = self._flatten(state)
            self._make_room(boxes)
            self._native.snapshot(boxes, step, samples, to_store)
        except HoldfastError as error:
            # An agent that came back between the meeting and now may keep the buffer for a while.
            if getattr(error, "errno", 0) != errno.EAGAIN:
                raise
            return self._skip(to_store)
        finally:
            self.enter(before)
        self._cadence.taken(step, to_store)
        return True

    def _skip(self, to_store):
        self._native.skip_snapshot()
        self._cadence.skipped(to_store)
        return False

    def _meet(self):
        saves = self._native.save_requests()
        mine = Wish(self._native.snapshot_ready(), self._native.should_stop(),
                    self.rank == 0 and saves != self._saves_seen)
        wish = self._agreement.meet(mine)
        self._saves_seen = saves
        return wish

    def _wait_for_buffer(self, step):
        deadline = time.monotonic() + BUFFER_WAIT_MAX_S
        while True:
            late = time.monotonic() > deadline
            wish = self._agreement.meet(Wish(self._native.snapshot_ready(), 0, late))
            if wish.ready:
                return wish
            if wish.save:  # here: somebody's time is up, and so everybody stops waiting at once
                warnings.warn(f"holdfast: no buffer was free for the snapshot of step {step} within "
                              f"{BUFFER_WAIT_MAX_S} s; it is left out", RuntimeWarning, stacklevel=4)
                return wish
            self._check_attempt()
            time.sleep(BUFFER_POLL_S)

    def _flatten(self, state):
        return _tree.Flattener(self.rank, self.world_size).flatten(state)

    def _make_room(self, boxes):
        """Asks for the arena once; again only for a state that has grown out of it."""
        need = (buffer_bytes(boxes), len(boxes))
        if self._room is not None and need[0] <= self._room[0] and need[1] <= self._room[1]:
            return
        self._native.prepare_snapshots(boxes, BUFFERS)
        self._room = need

    # -- load

    def load(self, state):
        self._saves_together = True
        self.enter("restore")
        source = self._source()
        if source is not None:
            try:
                self._fill(state, source)
            except HoldfastError as error:
                self._native.set_last_words(str(error))
                raise
            self._step = source.step
            self._cadence.start(source.step)
        self.enter("first_step")
        return self._step

    def _source(self):
        if self._native.restore_step():
            return _sources.Memory(self._native)
        restore = os.environ.get("HOLDFAST_RESTORE", "")
        if restore.startswith("checkpoint:"):
            return _sources.Checkpoint(restore)
        if restore.startswith("snapshot:"):
            raise StateUnreadable(f"HOLDFAST_RESTORE is {restore}, but the keeper holds no such snapshot of rank "
                                  f"{self.rank}")
        if restore not in ("", "scratch"):
            raise HoldfastError(f"HOLDFAST_RESTORE={restore}: is none of scratch, snapshot:... and checkpoint:...")
        return None

    def _fill(self, state, source):
        try:
            saved = decode(source.read_state(self.rank))
        except ValueError as error:
            raise StateDamaged(f"{source.where}: the encoded values of rank {self.rank} cannot be read: {error}") \
                from None
        if not isinstance(state, (dict, _tree.Replicated)) and not _tree.is_stateful(state):
            raise StateMismatch(f"a state is a dictionary, not a {type(state).__qualname__}")
        filler = _tree.Filler(self.rank, self.world_size)
        filler.plan(state, saved)
        self.samples = source.fill(filler.boxes)
        filler.apply()
