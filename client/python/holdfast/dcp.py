# SPDX-License-Identifier: Apache-2.0
"""Storage for torch.distributed.checkpoint: verified byte by byte, committed whole or not at all, without pickle.

    import torch.distributed.checkpoint as dcp
    import holdfast.dcp
    dcp.save(state, storage_writer=holdfast.dcp.StorageWriter("ckpt/100"))
    dcp.load(state, storage_reader=holdfast.dcp.StorageReader("ckpt/100"))

docs/python.md is the guide, docs/formats/dcp.md the format. dcp wraps errors of any rank in its CheckpointException;
`failures` of it holds ours.
"""
import ctypes
import os
import threading

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint import metadata as _dcp_metadata
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader as _Reader
from torch.distributed.checkpoint.storage import StorageWriter as _Writer
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _dcp_files, _dcp_torch
from ._dcp_format import PIECE_BYTES, encode_commit, file_sizes, read_commit
from .errors import HoldfastError, StateMismatch, StateUnreadable

__all__ = ["StorageReader", "StorageWriter"]

_dcp_torch.check_byte_order()


def _done(value):
    future = Future()
    future.set_result(value)
    return future


def _new_id():
    return os.urandom(8).hex()


class _Path:
    """A directory, given to the constructor or as checkpoint_id of a call."""

    def __init__(self, path=None, threads=None):
        super().__init__()
        if threads is not None and (type(threads) is not int or threads < 1):
            raise HoldfastError(f"threads={threads!r}: is no number from 1")
        self._path, self._threads, self._id = path, threads, _new_id()

    def reset(self, checkpoint_id=None):
        if checkpoint_id:
            self._path = checkpoint_id
        self._id = _new_id()

    @property
    def checkpoint_id(self):
        return self._path

    def _directory(self):
        if not self._path:
            raise HoldfastError(f"holdfast.dcp.{type(self).__name__}: give it a path, or the call a checkpoint_id")
        return os.fspath(self._path)

    def _thread_count(self):
        return self._threads or _dcp_files.default_threads()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return "://" not in os.fspath(checkpoint_id)


class StorageWriter(_Path, _Writer):
    """Saves into the directory `path`; what was committed there stays until all of the new checkpoint is on the disk.
    One save at a time for one path. `threads`: of this rank (else a part of the machine's processors)."""

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if kwargs.get("use_collectives", True) is False:
            raise HoldfastError("holdfast.dcp: use_collectives=False is not supported: a checkpoint is committed once, "
                                "for all ranks together")
        self._id = _new_id()
        rank = kwargs.get("rank")
        if rank is None:  # torch before 2.9
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if distributed else 0
        self._rank = rank

    def prepare_local_plan(self, plan):
        directory = self._directory()
        try:
            _dcp_files.make_directory(directory)
        except OSError as error:
            raise _dcp_files.write_error(directory, error) from None
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def write_data(self, plan, planner):
        if not plan.items:
            return _done([])
        directory = self._directory()
        try:
            entries = _dcp_files.write_data(directory, self._rank, _sources(plan, planner, _dcp_torch.Caller()),
                                            self._thread_count(), PIECE_BYTES)
        except OSError as error:
            raise _dcp_files.write_error(directory, error) from None
        return _done([WriteResult(index=item.index, size_in_bytes=entry.nbytes, storage_data=entry)
                      for item, entry in zip(plan.items, entries)])

    def finish(self, metadata, results):
        directory = self._directory()
        entries = {result.index: result.storage_data for of_rank in results for result in of_rank}
        _check_complete(metadata, entries)
        sizes = file_sizes(entries.values())

        def failure(text):
            return HoldfastError(f"{text}: all ranks must see one file system at this path, and one save at a time may "
                                 "go to it")
        _dcp_files.check_sizes(directory, sizes, failure)
        rest = {"save_id": self._id, **_dcp_torch.metadata_to_json(metadata)}
        try:
            _dcp_files.write_commit(directory, encode_commit(list(entries.values()), rest), sizes)
        except OSError as error:
            raise _dcp_files.write_error(directory, error) from None
        metadata.storage_data = entries
        if hasattr(metadata, "storage_meta"):
            metadata.storage_meta = self.storage_meta()

    def storage_meta(self):
        kind = getattr(_dcp_metadata, "StorageMeta", None)  # torch 2.3
        return None if kind is None else kind(checkpoint_id=self._path, save_id=self._id)


def _sources(plan, planner, caller):
    for item in plan.items:
        fqn, offset = item.index.fqn, item.index.offset
        offset = None if offset is None else tuple(offset)
        if item.type == WriteItemType.BYTE_IO:
            data = _dcp_torch.encode_value(_dcp_torch.planned_value(planner, item), fqn)
            yield fqn, offset, None, (len(data),), memoryview(data), data
        else:
            tensor = planner.resolve_data(item)
            view, keep = _dcp_torch.tensor_bytes(tensor, fqn, caller)
            yield fqn, offset, _dcp_torch.short_name(keep.dtype), tuple(keep.shape), view, keep


def _check_complete(metadata, entries):
    """Every chunk that the metadata promises was written by some rank."""
    for fqn, stored in metadata.state_dict_metadata.items():
        chunks = getattr(stored, "chunks", None)
        for offset in [None] if chunks is None else [chunk.offsets for chunk in chunks]:
            if MetadataIndex(fqn, offset) not in entries:
                at = "" if offset is None else f" at {list(offset)}"
                raise HoldfastError(f"{fqn}{at}: is in the planner's metadata and no rank wrote it; nothing is "
                                    "committed")


class _Unreadable(Metadata):
    """In the place of metadata that cannot be read: raises the reason at the first use. dcp.load swallows what
    read_metadata() raises, and goes on to look for another format of its own."""

    def __init__(self, error):
        object.__setattr__(self, "_error", error)

    def __bool__(self):
        raise object.__getattribute__(self, "_error")

    def __getattribute__(self, name):
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise object.__getattribute__(self, "_error")


class StorageReader(_Path, _Reader):
    """Loads the checkpoint in the directory `path`. Every piece is verified before its bytes are given to the planner:
    StateDamaged names file and item. `threads`: of this rank (else a part of the machine's processors)."""

    def read_metadata(self, *args, **kwargs):
        try:
            self._commit = read_commit(self._directory())
            return _dcp_torch.metadata_from_json(self._commit, self._path, self._id)
        except HoldfastError as error:
            return _Unreadable(error)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._entries = metadata.storage_data
        if is_coordinator:  # one rank looks at all files, the others at those that they need
            with self._source() as source:
                source.check_files()

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def _source(self):
        return _dcp_files.Source(self._directory(), self._commit)

    def read_data(self, plan, planner):
        with self._source() as source:
            _Load(plan, planner, source, self._entries, self._commit).run(self._thread_count())
        return _done(None)


class _Load:
    """One read_data(): the jobs of its threads. The planner is called by one thread at a time."""

    def __init__(self, plan, planner, source, entries, commit):
        self._planner, self._source, self._commit = planner, source, commit
        self._lock, self._local = threading.RLock(), threading.local()
        self._caller, self._items = _dcp_torch.Caller(), []
        for item in plan.items:
            entry = entries.get(item.storage_index)
            if entry is None:
                raise StateUnreadable(f"{commit.path}: has no chunk of {item.storage_index.fqn} at "
                                      f"{item.storage_index.offset}, which the plan asks for")
            self._items.append((item, entry))
        self._items.sort(key=lambda pair: pair[1].pieces[:1])

    def run(self, threads):
        _dcp_files.pump(self._jobs(), lambda job: job(), threads)

    def _jobs(self):
        for item, entry in self._items:
            self._source.open(entry)
            if item.type == LoadItemType.BYTE_IO:
                yield lambda item=item, entry=entry: self._load_value(item, entry)
            else:
                yield from self._tensor_jobs(item, entry)

    def _load_value(self, item, entry):
        if entry.dtype is not None:
            raise StateMismatch(f"{entry.fqn}: was saved as a tensor, wanted is a value")
        value = _dcp_torch.value_for_planner(entry, self._source.read(entry), self._commit.path)
        with self._lock:
            self._planner.load_bytes(item, value)

    def _tensor_jobs(self, item, entry):
        if entry.dtype is None:
            raise StateMismatch(f"{entry.fqn}: was saved as a value, wanted is a tensor")
        with self._lock:
            target = self._planner.resolve_tensor(item).detach()
        if tuple(target.shape) != tuple(item.lengths):
            raise StateMismatch(f"{entry.fqn}: the planner gives a tensor of {list(target.shape)} for "
                                f"{list(item.lengths)}")
        if target.numel() == 0:
            with self._lock:
                self._planner.commit_tensor(item, target)
            return
        dtype = _dcp_torch.stored_dtype(entry)
        cut = _dcp_torch.Cut(entry, dtype, item.storage_offsets, item.lengths, self._commit.piece_bytes)
        if not (cut.whole and _dcp_torch.can_be_filled(target, dtype)):
            yield lambda: self._load_cut(item, entry, cut, target)
            return
        left = [len(cut.pieces)]
        for number in cut.pieces:
            yield lambda number=number: self._load_piece(item, entry, number, target, left)

    def _load_piece(self, item, entry, number, target, left):
        """Straight into the target, as soon as the piece is verified."""
        part, view = self._room().take(min(self._commit.piece_bytes, entry.nbytes))
        size = self._source.read_piece(entry, number, view)
        ctypes.memmove(target.data_ptr() + number * self._commit.piece_bytes, part.data_ptr(), size)
        with self._lock:
            left[0] -= 1
            if left[0] == 0:
                _dcp_torch.mark_changed(target)
                self._planner.commit_tensor(item, target)

    def _load_cut(self, item, entry, cut, target):
        part, view = self._room().take(cut.nbytes)
        at = 0
        for number in cut.pieces:
            at += self._source.read_piece(entry, number, view[at:])
        self._caller.wait(target)
        try:
            target.copy_(cut.tensor(part))
        except RuntimeError as error:
            raise StateMismatch(f"{entry.fqn}: {error}") from None
        with self._lock:
            self._planner.commit_tensor(item, target)

    def _room(self):
        if not hasattr(self._local, "room"):
            self._local.room = _dcp_torch.Room()
        return self._local.room
