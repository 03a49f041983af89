# SPDX-License-Identifier: Apache-2.0
"""The encoding of everything in a state that is no tensor (docs/python.md, "Encoding"). Never pickle: reading runs
nobody's code, and every length is checked before it is believed."""
import struct

from .errors import HoldfastError

MAGIC, VERSION = b"HUFPYST1", 1
HEADER = struct.Struct("<8sIIQ")  # magic, version, zero, bytes of the body
DEPTH_MAX = 64
ENCODED_BYTES_MAX = 1 << 30
GRAIN_BYTES = 64 << 10  # an encoded state fills a power of two of at least this many bytes: its size stays put

_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")


class Ref:
    """Where a tensor stood: what it is called in the snapshot, how it was held, its type and shape there. `local` is
    the shape of this rank's part, `layout` of a distributed one (mesh shape, placements)."""

    __slots__ = ("name", "kind", "dtype", "shape", "local", "layout")

    def __init__(self, name, kind, dtype, shape, local, layout=()):
        self.name, self.kind, self.dtype = name, kind, dtype
        self.shape, self.local, self.layout = tuple(shape), tuple(local), tuple(layout)

    def fields(self):
        return (self.name, self.kind, self.dtype, self.shape, self.local, self.layout)


class Unencodable(Exception):
    """A value of a type that has no encoding."""


def encode(value):
    """The whole tensor: header, body, zeros."""
    whole = encode_tight(value)
    return bytearray(whole.ljust(capacity(len(whole)), b"\0"))


def encode_tight(value):
    """Header and body alone, for where nothing else depends on the size."""
    out = bytearray()
    _write(value, out, 0)
    if len(out) > ENCODED_BYTES_MAX:
        raise HoldfastError(f"the plain values of the state take {len(out)} bytes, at most {ENCODED_BYTES_MAX}; "
                            "keep large data in tensors or bytearrays")
    return HEADER.pack(MAGIC, VERSION, 0, len(out)) + bytes(out)


def capacity(size):
    room = GRAIN_BYTES
    while room < size:
        room *= 2
    return room


def _sized(tag, data):
    return tag + _U32.pack(len(data)) + data


def _write(value, out, depth):
    if depth > DEPTH_MAX:
        raise Unencodable(f"is nested more than {DEPTH_MAX} deep")
    kind = type(value)
    if value is None:
        out += b"n"
    elif kind is bool:
        out += b"T" if value else b"F"
    elif kind is int:
        _write_int(value, out)
    elif kind is float:
        out += b"f" + _F64.pack(value)
    elif kind is str:
        out += _sized(b"s", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes:
        out += _sized(b"b", value)
    elif kind is Ref:
        out += b"r"
        _write(value.fields(), out, depth + 1)
    elif kind in (list, tuple):
        out += (b"l" if kind is list else b"t") + _U32.pack(len(value))
        for item in value:
            _write(item, out, depth + 1)
    elif kind is dict:
        out += b"d" + _U32.pack(len(value))
        for key, item in value.items():
            _write(key, out, depth + 1)
            _write(item, out, depth + 1)
    else:
        raise Unencodable(f"is a {kind.__module__}.{kind.__qualname__}")


def _write_int(value, out):
    if -(1 << 63) <= value < 1 << 63:
        out += b"i" + _I64.pack(value)
    else:
        out += _sized(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        if size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes wanted at {self.at}, {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size:self.at]

    def u32(self):
        return _U32.unpack(self.take(4))[0]

    def count(self):
        n = self.u32()
        if n > len(self.data) - self.at:  # each item takes a byte at least
            raise ValueError(f"{n} items at {self.at}, {len(self.data) - self.at} bytes left")
        return n


def decode(data):
    """What was encoded; ValueError when `data` is no encoding of this version."""
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, the header alone has {HEADER.size}")
    magic, version, zero, size = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"begins with {bytes(magic)!r}, not {MAGIC!r}")
    if version != VERSION or zero != 0:
        raise ValueError(f"version {version}, this package reads {VERSION}; use a newer one")
    if size > len(data) - HEADER.size:
        raise ValueError(f"says {size} bytes, has {len(data) - HEADER.size}")
    reader = _Reader(bytes(data[HEADER.size:HEADER.size + size]))
    value = _read(reader, 0)
    if reader.at != size:
        raise ValueError(f"{size - reader.at} bytes behind the end")
    return value


def _read(reader, depth):
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    tag = reader.take(1)
    if tag in b"nTF":
        return {b"n": None, b"T": True, b"F": False}[tag]
    if tag == b"i":
        return _I64.unpack(reader.take(8))[0]
    if tag == b"I":
        return int.from_bytes(reader.take(reader.u32()), "little", signed=True)
    if tag == b"f":
        return _F64.unpack(reader.take(8))[0]
    if tag == b"s":
        return reader.take(reader.u32()).decode("utf-8", "surrogatepass")
    if tag == b"b":
        return reader.take(reader.u32())
    if tag in b"lt":
        items = [_read(reader, depth + 1) for _ in range(reader.count())]
        return items if tag == b"l" else tuple(items)
    if tag == b"d":
        return _read_dict(reader, depth)
    if tag == b"r":
        return _read_ref(reader, depth)
    raise ValueError(f"unknown tag {tag!r} at {reader.at - 1}")


def _read_dict(reader, depth):
    value = {}
    for _ in range(reader.count()):
        key = _read(reader, depth + 1)
        try:
            value[key] = _read(reader, depth + 1)
        except TypeError:
            raise ValueError(f"a key of type {type(key).__name__}") from None
    return value


def _read_ref(reader, depth):
    fields = _read(reader, depth + 1)
    if not (isinstance(fields, tuple) and len(fields) == 6 and isinstance(fields[0], str)
            and isinstance(fields[1], str) and type(fields[2]) is int
            and all(isinstance(f, tuple) for f in fields[3:])
            and all(type(n) is int and n >= 0 for f in fields[3:5] for n in f)):
        raise ValueError("a tensor's entry of another form")
    return Ref(*fields)
