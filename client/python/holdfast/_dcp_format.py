# SPDX-License-Identifier: Apache-2.0
"""The commit file of a checkpoint of torch.distributed.checkpoint, and what it says about every stored item
(docs/formats/dcp.md). Needs no torch."""
import dataclasses
import hashlib
import json
import os
import re
from typing import Optional, Tuple

from .errors import StateDamaged, StateUnreadable

FORMAT, VERSION = "holdfast-dcp", 1
COMMIT_NAME = "holdfast-dcp.json"
DATA_NAME = re.compile(r"holdfast-dcp-[0-9a-f]{16}-[0-9]+\.data")
# What a save may leave behind, besides a data file that no commit names.
UNFINISHED_NAME = re.compile(r"holdfast-dcp-[0-9a-f]{16}-[0-9]+\.data\.part|holdfast-dcp\.json\.[0-9a-f]{16}\.part")
PIECE_BYTES = 8 << 20  # of an item for one digest: small enough for many threads and for reading a part of an item
COMMIT_BYTES_MAX = 4 << 30
FOOTER = re.compile(rb"sha256 ([0-9a-f]{64})\n")
FOOTER_BYTES = len("sha256 ") + 64 + 1
FOREIGN_NAME = ".metadata"  # of PyTorch's own FileSystemWriter

DIGESTS = {"sha256": hashlib.sha256, "blake2b-256": lambda data=b"": hashlib.blake2b(data, digest_size=32)}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One stored item: a chunk of a tensor, or a value (`dtype` is None). Its bytes lie in pieces, each in any file."""

    fqn: str
    offset: Optional[Tuple[int, ...]]  # of the chunk in its tensor
    dtype: Optional[str]
    shape: Tuple[int, ...]
    nbytes: int
    algorithm: str  # of the digests
    pieces: Tuple[Tuple[str, int, str], ...]  # file, begin in it, digest in hexadecimal

    def name(self):
        """For messages."""
        return f"item {self.fqn!r}" + (f" at {list(self.offset)}" if self.offset and any(self.offset) else "")


def piece_count(nbytes, piece_bytes):
    return -(-nbytes // piece_bytes)


def piece_bytes_of(nbytes, number, piece_bytes):
    return min(piece_bytes, nbytes - number * piece_bytes)


def file_sizes(entries):
    """{name: bytes} of the files that hold `entries` and nothing else."""
    sizes = {}
    for entry in entries:
        for number, (name, begin, _) in enumerate(entry.pieces):
            end = begin + piece_bytes_of(entry.nbytes, number, PIECE_BYTES)
            sizes[name] = max(sizes.get(name, 0), end)
    return sizes


def encode_commit(entries, rest):
    """The bytes of the commit file. `rest`: further fields, of JSON's types."""
    sizes = file_sizes(entries)
    number = {name: i for i, name in enumerate(sorted(sizes))}
    body = {"format": FORMAT, "version": VERSION, "piece_bytes": PIECE_BYTES,
            "files": [{"name": name, "bytes": sizes[name]} for name in number],
            "items": [{"fqn": e.fqn, "offset": e.offset, "dtype": e.dtype, "shape": e.shape, "bytes": e.nbytes,
                       "digest": e.algorithm, "pieces": [[number[f], begin, digest] for f, begin, digest in e.pieces]}
                      for e in entries], **rest}
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    return text + b"sha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"


class Commit:
    """A commit file that was read and verified."""

    def __init__(self, path, data):
        self.path, self.seal = path, data[-FOOTER_BYTES:]
        body = _verified(path, data)
        try:
            self.body = json.loads(body)
            self._understand()
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise StateDamaged(f"{path}: its digest is right, its contents are not ({type(error).__name__}: {error}); "
                               "another program wrote it") from None

    def _understand(self):
        body = self.body
        if body["format"] != FORMAT or body["version"] != VERSION:
            raise ValueError(f"{body['format']} version {body['version']}, this package reads {FORMAT} version "
                             f"{VERSION}; use a newer one")
        self.piece_bytes = _positive(body["piece_bytes"])
        self.file_bytes = {}
        for file in body["files"]:
            if DATA_NAME.fullmatch(file["name"]) is None:
                raise ValueError(f"a file called {file['name']!r}")
            self.file_bytes[file["name"]] = _count(file["bytes"])
        self.entries = [self._entry(item) for item in body["items"]]

    def _entry(self, item):
        offset = None if item["offset"] is None else tuple(_count(n) for n in item["offset"])
        pieces = tuple((self.body["files"][_count(file)]["name"], _count(begin), digest)
                       for file, begin, digest in item["pieces"])
        entry = Entry(item["fqn"], offset, item["dtype"], tuple(_count(n) for n in item["shape"]),
                      _count(item["bytes"]), item["digest"], pieces)
        if not (isinstance(entry.fqn, str) and isinstance(entry.dtype, (str, type(None)))):
            raise ValueError(f"an item called {entry.fqn!r} of dtype {entry.dtype!r}")
        if entry.algorithm not in DIGESTS:
            raise ValueError(f"{entry.name()} has digests {entry.algorithm!r}")
        if len(pieces) != piece_count(entry.nbytes, self.piece_bytes):
            raise ValueError(f"{entry.name()} has {len(pieces)} pieces for {entry.nbytes} bytes")
        for number, (name, begin, _) in enumerate(pieces):
            if begin + piece_bytes_of(entry.nbytes, number, self.piece_bytes) > self.file_bytes[name]:
                raise ValueError(f"{entry.name()} ends behind {name}")
        return entry


def _count(value):
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _positive(value):
    if _count(value) == 0:
        raise ValueError("a length of 0")
    return value


def _verified(path, data):
    footer = FOOTER.fullmatch(data[-FOOTER_BYTES:])
    if footer is None:
        raise StateDamaged(f"{path}: does not end with its digest ({len(data)} bytes): it was cut or changed; load an "
                           "older checkpoint")
    body = data[:-FOOTER_BYTES]
    if hashlib.sha256(body).hexdigest().encode() != footer[1]:
        raise StateDamaged(f"{path}: its contents do not match its digest: it was changed after it was written; load "
                           "an older checkpoint")
    return body


def read_commit(directory):
    """The Commit of the checkpoint in `directory`."""
    path = os.path.join(directory, COMMIT_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(COMMIT_BYTES_MAX)
    except FileNotFoundError:
        raise StateUnreadable(_why_no_checkpoint(directory)) from None
    except OSError as error:
        raise StateUnreadable(f"{path}: {error.strerror}") from None
    return Commit(path, data)


def _why_no_checkpoint(directory):
    try:
        names = os.listdir(directory)
    except OSError as error:
        return f"{directory}: is no complete checkpoint: {error.strerror}"
    if FOREIGN_NAME in names:
        return (f"{directory}: is no checkpoint of holdfast.dcp: it has a {FOREIGN_NAME} and no {COMMIT_NAME}; "
                "torch.distributed.checkpoint.FileSystemReader reads it")
    ours = [name for name in names if DATA_NAME.fullmatch(name) or UNFINISHED_NAME.fullmatch(name)]
    why = "a save into it never ended" if ours else "nothing was saved there"
    return f"{directory}: is no complete checkpoint: it has no {COMMIT_NAME} ({why}); load another one"
