# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, and what a binary may link: ARCHITECTURE.md's table as data."""

# Folder -> folders it may include. Arrows are transitive. A folder without a line of its own belongs to its parent.
ARROWS = {
    "base": (),
    "base/rank": (),
    "base/uring": ("base",),
    "proto": ("base",),
    "ckpt/client": ("base/rank",),
    "ckpt/format": ("base", "base/rank"),
    "ckpt": ("base/uring", "ckpt/format", "ckpt/client"),
    "scheduler": ("base", "proto", "ckpt/format"),
    "agent": ("base", "proto", "ckpt"),
    "agent/keeper": ("base/rank",),
    "agent/tcp_store": ("base",),
    "client": ("base/rank", "ckpt/client"),
    "kernels": ("base",),
    "parallel": ("base", "kernels", "client"),
    # A rank restores from a store directory that its node can read: the trainer reads checkpoints, never writes them.
    "worker": ("parallel", "client", "ckpt"),
    "cli": ("base", "proto"),
}

# Headers that everybody may include, since they themselves include nothing but libc and the C++ library.
FREE_HEADERS = ("base/unique_fd.h", "base/step.h")

# tests/ crosses components by its nature: everything is open to it.
CROSSING = ("tests",)

# Folders that include nothing but libc, the C++ library and what ARROWS allows, with their exceptions. xxhash.h is
# compiled in, not linked.
NO_THIRD_PARTY = {"base/rank": (), "agent/keeper": (), "agent/tcp_store": (), "client": (),
                  "ckpt/client": ("xxhash.h",)}

# Include prefixes of third parties, and the folders they are for. What is not named here is refused everywhere.
THIRD_PARTY = {
    "absl/": ("base", "base/uring", "proto", "ckpt/format", "ckpt", "scheduler", "agent", "kernels", "parallel",
              "worker", "cli"),
    "grpcpp/": ("proto", "scheduler", "agent", "cli"),
    "grpc/": ("proto", "scheduler", "agent", "cli"),
    "google/protobuf/": ("proto", "scheduler", "agent", "cli"),
    "google/rpc/": ("proto", "scheduler", "agent", "cli"),
    "rocksdb/": ("scheduler",),
    "liburing.h": ("base/uring",),
    "zstd.h": ("ckpt", "agent"),
    "xxhash.h": ("ckpt", "ckpt/format", "ckpt/client", "scheduler", "agent", "worker"),
    "spdlog/": ("scheduler", "agent", "cli"),
    "CLI/": ("scheduler", "agent", "cli", "ckpt", "worker"),
    "yaml-cpp/": ("proto", "cli", "worker"),
    "nlohmann/": ("base", "proto", "ckpt/format", "ckpt", "scheduler", "agent", "cli", "worker"),
    "ATen/": ("kernels", "parallel", "worker"),
    "c10/": ("kernels", "parallel", "worker"),
    "torch/": ("kernels", "parallel", "worker"),
    "gloo/": ("parallel",),
    "sentencepiece": ("worker",),
    "cuda": ("kernels",),
}
TEST_FRAMEWORK = ("gtest/", "gmock/")

# Angle includes that are libc or Linux headers although they have a folder in their name.
SYSTEM_PREFIXES = ("sys/", "linux/", "arpa/", "net/", "netinet/", "asm/", "bits/")
# Headers without a folder in their name that are neither C, C++ nor POSIX.
BARE_THIRD_PARTY = ("liburing.h", "zstd.h", "xxhash.h", "numa.h")

C_LIBRARY = ("libc.so.", "ld-linux", "libm.so.", "libstdc++.so.", "libgcc_s.so.")
SANITIZERS = ("libasan.so.", "libubsan.so.", "libtsan.so.")

# Binary -> allowed prefixes of NEEDED (None: anything not refused), then refused parts of any loaded library's name.
CONTROL = ("grpc", "protobuf", "rocksdb")
TORCH = ("torch", "libc10", "cuda", "cudart", "nccl")
BINARIES = {
    "holdfast-keeper": (C_LIBRARY, CONTROL + TORCH),
    "holdfast-tcp-store": (C_LIBRARY, CONTROL + TORCH),
    "holdfast-test-rank": (None, CONTROL + TORCH),
    "libholdfast.so": (C_LIBRARY, CONTROL + TORCH),
    "holdfast-worker": (None, CONTROL),
    "holdfast-data": (None, ("grpc", "rocksdb")),
    "holdfast-ckpt": (None, CONTROL + TORCH),
    "holdfast-scheduler": (None, TORCH),
    "holdfast-agent": (None, TORCH),
    "holdfast": (None, TORCH + ("rocksdb",)),
}
