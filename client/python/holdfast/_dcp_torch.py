# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of holdfast.dcp: torch.distributed.checkpoint's Metadata as JSON and back, tensors as bytes, plain
values for its planners. Nothing here is pickled but for a planner that wants it, in memory (docs/formats/dcp.md)."""
import base64
import ctypes
import dataclasses
import io
import sys

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)

from . import _torch, _values
from ._tree import plain
from .errors import StateDamaged, StateMismatch

_MEMORY_FORMATS = {"contiguous_format": torch.contiguous_format, "channels_last": torch.channels_last,
                   "preserve_format": torch.preserve_format}
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _field_names(kind):
    """Versions of torch differ in the fields of these classes."""
    return {field.name for field in dataclasses.fields(kind)}


def short_name(value):
    """"float32" of torch.float32."""
    return str(value).rpartition(".")[2]


def _named(name, kind):
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise StateMismatch(f"was saved with {kind.__name__} {name}, which this torch {torch.__version__} does not "
                            "have")
    return value


# Metadata

def metadata_to_json(metadata):
    """The fields of a commit file that are dcp's own."""
    return {"torch": torch.__version__,
            "state": {fqn: _state_to_json(fqn, stored) for fqn, stored in metadata.state_dict_metadata.items()},
            "planner_data": base64.b64encode(encode_value(metadata.planner_data, "planner_data")).decode()}


def _state_to_json(fqn, stored):
    if isinstance(stored, BytesStorageMetadata):
        return {"kind": "value"}
    if not isinstance(stored, TensorStorageMetadata):
        raise StateMismatch(f"{fqn}: the planner describes it as a {type(stored).__qualname__}; tensors and plain "
                            "values can be saved")
    return {"kind": "tensor", "size": list(stored.size), "properties": _properties_to_json(stored.properties),
            "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in stored.chunks]}


def _properties_to_json(properties):
    strides = getattr(properties, "strides", None)
    return {"dtype": short_name(properties.dtype), "layout": short_name(properties.layout),
            "requires_grad": bool(properties.requires_grad), "memory_format": short_name(properties.memory_format),
            "pin_memory": bool(properties.pin_memory), "strides": None if strides is None else list(strides)}


def metadata_from_json(commit, checkpoint_id, load_id):
    """The Metadata of a commit file, with {MetadataIndex: Entry} as storage_data."""
    try:
        state = {fqn: _state_from_json(fqn, stored) for fqn, stored in commit.body["state"].items()}
        planner_data = _values.decode(base64.b64decode(commit.body["planner_data"]))
        storage = {MetadataIndex(entry.fqn, entry.offset): entry for entry in commit.entries}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateDamaged(f"{commit.path}: its digest is right, its contents are not ({type(error).__name__}: "
                           f"{error}); another program wrote it") from None
    made = Metadata(state_dict_metadata=state, planner_data=planner_data, storage_data=storage)
    if "storage_meta" in _field_names(Metadata):
        made.storage_meta = dcp_metadata.StorageMeta(checkpoint_id=checkpoint_id, save_id=commit.body["save_id"],
                                                     load_id=load_id)
    return made


def _state_from_json(fqn, stored):
    if stored["kind"] == "value":
        return BytesStorageMetadata()
    if stored["kind"] != "tensor":
        raise ValueError(f"{fqn} is a {stored['kind']!r}")
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in stored["chunks"]]
    return TensorStorageMetadata(_properties_from_json(fqn, stored["properties"]), torch.Size(stored["size"]), chunks)


def _properties_from_json(fqn, stored):
    try:
        fields = {"dtype": _named(stored["dtype"], torch.dtype), "layout": _named(stored["layout"], torch.layout)}
    except StateMismatch as error:
        raise StateMismatch(f"{fqn}: {error}") from None
    fields.update(requires_grad=bool(stored["requires_grad"]), pin_memory=bool(stored["pin_memory"]),
                  memory_format=_MEMORY_FORMATS[stored["memory_format"]],
                  strides=None if stored["strides"] is None else tuple(stored["strides"]))
    names = _field_names(TensorProperties)
    return TensorProperties(**{name: value for name, value in fields.items() if name in names})


# Plain values

def encode_value(value, path):
    try:
        return _values.encode_tight(_simple(value, path))
    except _values.Unencodable as problem:
        raise StateMismatch(f"{path}: {problem}") from None


def _simple(value, path):
    """`value` of the encoding's types alone; what cannot be is named by its path."""
    if isinstance(value, dict):
        return {_simple_key(key, path): _simple(item, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_simple(item, f"{path}/{i}") for i, item in enumerate(value)]
    if type(value) is tuple or isinstance(value, torch.Size):
        return tuple(_simple(item, f"{path}/{i}") for i, item in enumerate(value))
    try:
        return plain(value)
    except TypeError:
        pass
    advice = "numbers, str, bytes, bool, None, and dictionaries, lists and tuples of them can"
    if isinstance(value, torch.Tensor):
        advice = "leave the planner's flatten_state_dict on, then every tensor is stored as one"
    raise StateMismatch(f"{path}: is a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved as a "
                        f"value; {advice}")


def _simple_key(key, path):
    try:
        return key if type(key) is tuple else plain(key)
    except TypeError:
        raise StateMismatch(f"{path}: has a key of type {type(key).__qualname__}") from None


def planned_value(planner, item):
    """What the planner would give as the bytes of a torch.save, before that."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    kind = type(planner)
    if (getattr(kind, "transform_object", None) is DefaultSavePlanner.transform_object
            and kind.resolve_data is DefaultSavePlanner.resolve_data):
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)  # plain values only: nothing of the state is executed
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise StateMismatch(f"{item.index.fqn}: {kind.__qualname__} gives bytes that are no plain value ({reason}); "
                            "only what torch.save makes of a plain value can be saved") from None


def value_for_planner(entry, data, path):
    """What the load planner expects in a BytesIO: the value, saved by torch."""
    try:
        value = _values.decode(data)
    except ValueError as error:
        raise StateDamaged(f"{path}: {entry.name()}: its digest is right, its contents are not ({error}); another "
                           "program wrote it") from None
    out = io.BytesIO()
    torch.save(value, out)
    out.seek(0)
    return out


# Tensors

def _is_wrapper(tensor):
    from torch.utils import _python_dispatch
    test = getattr(_python_dispatch, "is_traceable_wrapper_subclass", None)
    return test is not None and type(tensor) not in _PLAIN_TENSORS and test(tensor)


class Caller:
    """The stream of the thread that dcp calls. Our threads have another one, which waits for nothing: before it touches
    a tensor of a GPU, what the caller's stream still computes must be done."""

    def __init__(self):
        used = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._stream = torch.cuda.current_stream() if used else None

    def wait(self, tensor):
        if self._stream is not None and tensor.device.type != "cpu":
            self._stream.synchronize()


def tensor_bytes(tensor, path, caller):
    """(memoryview of its elements in order, what keeps it alive); copies only what is not on the CPU or has gaps."""
    caller.wait(tensor)
    tensor = tensor.detach()
    if callable(getattr(tensor, "trigger_wait", None)):
        tensor = tensor.trigger_wait()  # the result of a collective that may still run
    if _is_wrapper(tensor):
        raise StateMismatch(f"{path}: is a {type(tensor).__module__}.{type(tensor).__qualname__}, whose bytes are in "
                            "other tensors; save those")
    _torch._check_plain(tensor, path)
    ready = tensor.resolve_conj().resolve_neg().to("cpu").contiguous()
    return _view(ready), ready


def _view(tensor):
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B")


def stored_dtype(entry):
    try:
        return _named(entry.dtype or "none", torch.dtype)
    except StateMismatch as error:
        raise StateMismatch(f"{entry.fqn}: {error}") from None


def can_be_filled(target, dtype):
    """Whether stored bytes can go straight into this tensor's memory."""
    return (type(target) in _PLAIN_TENSORS and target.device.type == "cpu" and target.layout is torch.strided
            and target.dtype == dtype and target.is_contiguous() and not target.is_conj() and not target.is_neg())


def mark_changed(target):
    """Tells autograd of a change that went past it."""
    increment = getattr(torch.autograd.graph, "increment_version", None)  # torch 2.1
    if increment is not None and not target.is_inference():
        increment(target)


class Room:
    """Memory that a thread reads into, used again and again: pages that were never touched are slow."""

    def __init__(self):
        self._tensor = torch.empty(0, dtype=torch.uint8)

    def take(self, nbytes):
        """(tensor of u8, its bytes)"""
        if self._tensor.numel() < nbytes:
            self._tensor = torch.empty(nbytes, dtype=torch.uint8)
        part = self._tensor[:nbytes]
        return part, _view(part)


class Cut:
    """The box of a stored chunk that a read item wants: which pieces hold it, and the tensor in their bytes."""

    def __init__(self, entry, dtype, offsets, lengths, piece_bytes):
        self._dtype, self._lengths, width = dtype, tuple(lengths), dtype.itemsize
        strides, step = [], 1
        for n in reversed(entry.shape):
            strides.insert(0, step)
            step *= n
        if step * width != entry.nbytes or len(offsets) != len(strides):
            raise StateDamaged(f"{entry.name()}: {entry.nbytes} bytes for {list(entry.shape)} of {entry.dtype}; "
                               "another program wrote it")
        if any(o + n > have for o, n, have in zip(offsets, lengths, entry.shape)):
            raise StateMismatch(f"{entry.name()}: {list(lengths)} at {list(offsets)} is wanted of a stored "
                                f"{list(entry.shape)}")
        self.whole = tuple(lengths) == entry.shape
        first = sum(o * s for o, s in zip(offsets, strides))
        last = first + sum((n - 1) * s for n, s in zip(lengths, strides))
        self._strides = strides
        self.pieces = range(first * width // piece_bytes, last * width // piece_bytes + 1)
        self._skip = first - self.pieces[0] * piece_bytes // width
        self.nbytes = min(len(self.pieces) * piece_bytes, entry.nbytes - self.pieces[0] * piece_bytes)

    def tensor(self, part):
        """`part`: u8 tensor of the pieces' bytes."""
        return part.view(self._dtype).as_strided(self._lengths, self._strides, self._skip)


def check_byte_order():
    if sys.byteorder != "little":
        raise StateMismatch("holdfast.dcp: the format is little-endian, this processor is not")
