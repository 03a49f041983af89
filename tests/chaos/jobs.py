# SPDX-License-Identifier: Apache-2.0
"""The jobs that faults are injected into. Each: how it is submitted, how many steps it has, which programs it needs."""
import dataclasses
import json
import os
from typing import Callable

DAEMONS = ("holdfast", "holdfast-scheduler", "holdfast-agent", "holdfast-keeper", "holdfast-ckpt")
RESTARTS_MAX = 50


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    steps: int
    programs: tuple                # what has to be built
    spec: Callable                 # (cluster) -> specification
    nodes: int = 2
    gpus_per_node: int = 2

    @property
    def world(self):
        return self.nodes * self.gpus_per_node


def base_spec(name, nodes, gpus_per_node, persist_every):
    return {"name": name, "nodes": nodes, "gpus_per_node": gpus_per_node, "snapshot_every_steps": 1,
            "persist_every_steps": persist_every, "fence": "commit", "restarts_max": RESTARTS_MAX}


def native_spec(cluster, name, config, nodes, gpus_per_node, persist_every, environment=None):
    """A job of the trainer; its configuration is written beside the cluster's state."""
    path = os.path.join(cluster.directory, f"train-{name}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)  # JSON is YAML
        file.write("\n")
    spec = base_spec(name, nodes, gpus_per_node, persist_every)
    spec["trainer_config"] = path
    if environment:
        spec["environment"] = environment
    return spec


TEST_RANK_STEPS = 120
TEST_RANK_STEP_MS = 20
TEST_RANK_BYTES = 256 << 10


def _test_rank(cluster):
    spec = base_spec("drill", 2, 2, persist_every=5)
    spec["expects_checkpoints"] = True
    spec["command"] = [os.path.join(cluster.binaries, "holdfast-test-rank"), "--steps", str(TEST_RANK_STEPS),
                       "--bytes", str(TEST_RANK_BYTES), "--step-ms", str(TEST_RANK_STEP_MS)]
    return spec


NATIVE_STEPS = 200

# Small enough that four ranks of it share two cores; data parallel x tensor parallel as in the main job.
NATIVE_CONFIG = {
    "model": {"vocab": 256, "dim": 64, "layers": 2, "heads": 4, "ffn": 160, "seq_len": 64, "tied": True},
    "data": {"kind": "synthetic"},
    "train": {"steps": NATIVE_STEPS, "seed": 11, "micro_batch": 2, "threads": 1},
    "optimizer": {"lr": 1e-3, "warmup_steps": 10},
    "parallel": {"dp": 2, "tp": 2},
}


def _native(cluster):
    return native_spec(cluster, "drill", NATIVE_CONFIG, 2, 2, persist_every=10)


JOBS = {
    "native": Job("native", NATIVE_STEPS, DAEMONS + ("holdfast-worker",), _native),
    "test-rank": Job("test-rank", TEST_RANK_STEPS, DAEMONS + ("holdfast-test-rank",), _test_rank),
}
