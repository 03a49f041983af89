# SPDX-License-Identifier: Apache-2.0
"""Holdfast from a training script: say what step it is, save the state into memory that outlives the process, start
again from it. docs/python.md is the guide.

    import holdfast
    holdfast.init()
    state = {"model": model, "optimizer": optimizer}
    step = holdfast.load(state)                 # 0: from scratch
    while step < last and not holdfast.should_stop():
        train(...)
        step += 1
        holdfast.save(state, step)
        holdfast.step(step, loss=loss)

Started by no agent (no HOLDFAST_SOCKET), everything is a harmless no-op with one warning. Not thread-safe: one thread
of a process calls. All ranks call load() and save() in the same order.
"""
import os
import warnings

from . import _collectives
from ._job import Detached, Job
from ._tree import Replicated
from .errors import HoldfastError, StaleAttempt, StateDamaged, StateMismatch, StateUnreadable

__version__ = "0.1.0"
__all__ = ["HoldfastError", "StaleAttempt", "StateDamaged", "StateMismatch", "StateUnreadable", "attached", "attempt",
           "init", "job", "load", "phase", "prepare", "rank", "record_collectives", "replicated", "samples", "save",
           "should_stop", "step", "world_size"]

_this = None


def init(timeout_s=10):
    """Connects to the keeper of this rank. Calling it again does nothing; the other functions call it when needed."""
    global _this
    if _this is not None:
        return
    if os.environ.get("HOLDFAST_SOCKET"):
        _this = Job(timeout_s)
        return
    _this = Detached()
    warnings.warn("holdfast: this process was not started by Holdfast (HOLDFAST_SOCKET is not set); nothing is saved "
                  "or reported", RuntimeWarning, stacklevel=2)


def _current():
    if _this is None:
        init()
    return _this


def _after_fork():
    # The connection belongs to the parent: a data loader's worker reports and saves nothing.
    global _this
    if _this is not None:
        _this = Detached()
    _collectives.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def attached():
    """True in a rank that an agent started."""
    return _current().attached


def rank():
    """This rank's number; without an agent RANK of the environment, else 0."""
    return _current().rank


def world_size():
    return _current().world_size


def attempt():
    """Counts the starts of the job from 1; 0 without an agent."""
    return _current().attempt


def job():
    """"j-42"; None without an agent."""
    return _current().job_id


def samples():
    """Samples consumed, as last told to step() or as loaded."""
    return _current().samples


def step(n, loss=None, samples=None, grad_norm=None, lr=None, tokens_per_s=None):
    """Step `n` is finished. Steps count from 1, one after the other. The numbers go to the job's step log; a tensor of
    one element is read (on a GPU that waits for it). StaleAttempt when a newer attempt has begun."""
    _current().step(n, samples, loss, grad_norm, lr, tokens_per_s)


def phase(name):
    """This rank is now in phase `name`: data, forward, backward, reduce, optimizer, evaluation, ... As a context
    manager it goes back to the phase before at its end."""
    return _current().phase(name)


def should_stop():
    """None, or why the job should end: "cancel", "preempt", "drain", "time limit", "recovery". After a load() or a
    save() it is what all ranks agreed on at the last save(), which has then saved the state to the store; in a program
    that calls neither it is what this rank was told, and others may see it a step sooner or later."""
    return _current().should_stop()


def record_collectives():
    """From now on torch.distributed's collective operations are noted in this rank's recorder, those of process groups
    that are still to come too: which one this rank is in, and how many it has begun. Called once, before or after
    init_process_group. stop() of what it gives ends that, and so does its use as a context manager."""
    return _collectives.start(_current())


def replicated(value):
    """Marks a part of a state as the same on every rank, as parameters under DDP are: the store gets one copy of its
    plain tensors, and a difference between ranks is reported as silent corruption. Unmarked plain tensors are each
    rank's own."""
    return Replicated(value)


def prepare(state):
    """Sets up memory for snapshots of such a state now rather than in the first save()."""
    _current().prepare(state)


def save(state, step, samples=0, persist=None):
    """A snapshot of `state`, as it is after `step`, on all ranks or on none. Every rank calls it, at the same steps.
    True when it was taken: one is due (HOLDFAST_SNAPSHOT_EVERY, HOLDFAST_PERSIST_EVERY), was asked for (`persist`,
    `holdfast save`) or is the last before a stop. `persist`: True writes it to the store, False does not, None as the
    job says. It may be changed again at once when save() returns."""
    return _current().save(state, step, samples, persist)


def load(state):
    """Fills `state` with what this attempt starts from and gives its step; 0 and untouched when it starts from scratch.
    Tensors are filled in place; plain values are replaced; what is missing in dictionaries and lists is added; objects
    with state_dict() and load_state_dict() are filled through them."""
    return _current().load(state)
