# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors and DTensors. Imported only when the program has imported torch; uses public names that have been
there since 2.0 (DTensor: 2.5, and its older private home)."""
import math
import sys

import torch

from ._tensors import U8, Access, Slot, flat
from .errors import StateMismatch

_NAMES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4, "int8": 5, "uint8": 6, "int16": 7, "int32": 8,
          "int64": 9, "bool": 10, "float8_e4m3fn": 11, "float8_e5m2": 12}
_CODES = {getattr(torch, name): code for name, code in _NAMES.items() if hasattr(torch, name)}


def dtype_code(dtype):
    """0 for one without a code."""
    return _CODES.get(dtype, 0)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def _dtensor_class():
    for home in ("torch.distributed.tensor", "torch.distributed._tensor"):
        module = sys.modules.get(home)
        if module is not None and hasattr(module, "DTensor"):
            return module.DTensor
    return None


def is_dtensor(value):
    kind = _dtensor_class()
    return kind is not None and isinstance(value, kind)


def local_part(value):
    """The plain tensor that holds this rank's elements."""
    value = value.detach()
    return value.to_local() if is_dtensor(value) else value


def _dtype_name(dtype):
    return str(dtype).rpartition(".")[2]


def _check_plain(value, path):
    if value.layout is not torch.strided:
        raise StateMismatch(f"{path}: is a {value.layout} tensor; save its parts (indices and values) instead")
    if value.is_quantized or getattr(value, "is_nested", False):
        raise StateMismatch(f"{path}: is a quantized or nested tensor; save what it is made of instead")
    if value.device.type == "meta":
        raise StateMismatch(f"{path}: is on the meta device and has no data; materialise it first")


def describe(value, path, own, world_size):
    distributed = is_dtensor(value)
    if type(value).__name__ in ("ShardedTensor", "_ShardedTensor"):
        raise StateMismatch(f"{path}: is a ShardedTensor of FSDP1; use FSDP2 (fully_shard) or a full state dict")
    local = local_part(value)
    _check_plain(local, path)
    name = _dtype_name(value.dtype)
    code = _CODES.get(value.dtype)
    behind = () if code is not None else (local.element_size(),)
    code = U8 if code is None else code
    if not distributed:
        return Slot("torch:" + name, code, flat(tuple(value.shape) + behind), value.shape, own)
    slot = Slot("dtensor:" + name, code, tuple(value.shape) + behind, local.shape, "")
    if len(slot.shape) > 8:
        raise StateMismatch(f"{path}: a DTensor of {len(slot.shape)} dimensions; at most 8")
    _place(slot, value, path, world_size, behind)
    return slot


def _place(slot, value, path, world_size, behind):
    """The box of this rank: what each dimension of the mesh cuts off, in order, as torch.chunk cuts."""
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    ranks = mesh.mesh.flatten().tolist()
    # A mesh of some of the ranks: others may hold a tensor of the same name that is another one.
    slot.group = "" if len(ranks) == world_size else "mesh" + "-".join(str(r) for r in _span(ranks))
    slot.layout = (tuple(mesh.mesh.shape), tuple(_text(p, path) for p in value.placements))
    if coordinate is None:
        slot.present = False
        return
    shape = tuple(value.shape)
    offset, size, slot.replica = _cut(shape, mesh, coordinate, value.placements)
    if size != tuple(slot.local):
        raise StateMismatch(f"{path}: this rank holds {tuple(slot.local)} of {shape}, by its placements "
                            f"{value.placements} it should be {size}")
    slot.offset, slot.size = offset + (0,) * len(behind), size + behind


def _cut(shape, mesh, coordinate, placements):
    """(offset, size, number of the copy) of the box at `coordinate`."""
    offset, size, replica = [0] * len(shape), list(shape), 0
    for dim, placement in enumerate(placements):
        parts, part = mesh.size(dim), coordinate[dim]
        if placement.is_replicate():
            replica = replica * parts + part
            continue
        d = placement.dim % max(1, len(shape))
        chunk = -(-size[d] // parts)
        begin, end = min(chunk * part, size[d]), min(chunk * (part + 1), size[d])
        offset[d], size[d] = offset[d] + begin, end - begin
    return tuple(offset), tuple(size), replica


def _span(ranks):
    """First, last and number: enough to tell the meshes of one job apart, and short."""
    return (min(ranks), max(ranks), len(ranks))


def _text(placement, path):
    if placement.is_replicate():
        return "R"
    if placement.is_shard() and type(placement).__name__ == "Shard":
        return f"S{placement.dim}"
    raise StateMismatch(f"{path}: has the placement {placement}; Shard and Replicate can be saved. Redistribute it, or "
                        "save a full state dict")


def _pointer(tensor):
    nbytes = tensor.numel() * tensor.element_size()
    return (tensor.data_ptr() if nbytes else None), nbytes


def open_to_read(value):
    local = local_part(value)
    ready = local.resolve_conj().resolve_neg().to("cpu").contiguous()
    return Access(*_pointer(ready), ready)


def open_to_write(value, path):
    local = local_part(value)
    plain = local.device.type == "cpu" and local.is_contiguous() and not local.is_conj() and not local.is_neg()
    if plain:
        return Access(*_pointer(local), local)
    staging = torch.empty(local.shape, dtype=local.dtype, device="cpu")

    def finish():
        try:
            local.copy_(staging)
        except RuntimeError as error:
            raise StateMismatch(f"{path}: {error}") from None
    return Access(*_pointer(staging), staging, finish)


def meshes_of(value):
    return [value.device_mesh] if is_dtensor(value) else []


def make(ref, path, meshes):
    family, _, name = ref.kind.partition(":")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise StateMismatch(f"{path}: was saved as {name}, which this torch {torch.__version__} does not have")
    if family == "torch":
        return torch.empty(ref.local, dtype=dtype)
    mesh_shape, placements = ref.layout
    # Best a mesh of the same shape; else, when the job has another number of ranks, one of as many dimensions.
    alike = [m for m in meshes() if len(m.mesh.shape) == len(mesh_shape) and m.get_coordinate() is not None]
    mesh = next((m for m in alike if tuple(m.mesh.shape) == tuple(mesh_shape)), alike[0] if alike else None)
    if mesh is None:
        raise StateMismatch(f"{path}: is a DTensor on a mesh of {tuple(mesh_shape)}; none in the state that is loaded "
                            f"is on a mesh of {len(mesh_shape)} dimensions: put a DTensor at this place")
    return _make_dtensor(ref, dtype, mesh, placements)


def _make_dtensor(ref, dtype, mesh, placements):
    from torch.distributed.tensor import DTensor, Replicate, Shard
    dims = len(ref.local)
    shape = tuple(ref.shape[:dims])
    stride = tuple(math.prod(shape[d + 1:]) for d in range(dims))
    wanted = [Replicate() if p == "R" else Shard(int(p[1:])) for p in placements]
    local = torch.empty(_cut(shape, mesh, mesh.get_coordinate(), wanted)[1], dtype=dtype, device=mesh.device_type)
    return DTensor.from_local(local, mesh, wanted, run_check=False, shape=torch.Size(shape), stride=stride)
