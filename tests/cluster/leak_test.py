#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many short jobs leave nothing: processes, zombies, sockets, shared memory (mapped or named), temporary files,
descriptors of daemons."""
import os

import processes
from cluster_case import JOB_DEADLINE_S, ClusterCase, main, test_rank_job

DESCRIPTORS_SLACK = 4  # RocksDB opens and closes files of its own
STEPS = 5


def shared_memory():
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if "holdfast" in name or name.startswith("hf")}


class Leak(ClusterCase):
    def daemons(self):
        return ["scheduler", "agent-n0", "agent-n1"]

    def pids(self):
        return {name: self.cluster.wait_pid(name) for name in self.daemons()}

    def descriptors(self):
        return {name: processes.open_descriptors(pid) for name, pid in self.pids().items()}

    def mapped_memfds(self):
        """Arenas and recorders that a daemon still maps: its descriptors of them are closed."""
        return {name: processes.mappings(pid, "/memfd:") for name, pid in self.pids().items()}

    def zombies(self):
        parents = list(self.pids().values()) + processes.of_directory(self.directory)
        return [processes.describe(pid) for pid in processes.all_pids()
                if processes.state(pid) == "Z" and processes.parent(pid) in parents]

    def run_jobs(self, count):
        """Jobs one after the other, every fifth with a killed rank."""
        for index in range(count):
            job = self.cluster.submit(test_rank_job(self.cluster, f"short-{index}", steps=STEPS if index % 5 else 200))
            if index % 5 == 0:
                self.cluster.wait_step(job, 3)
                self.cluster.kill_rank(job, index % 4)
            self.cluster.wait_state(job, "DONE", JOB_DEADLINE_S)

    def leaves_nothing(self, count):
        self.run_jobs(2)  # what is opened once stays
        self.wait_quiet()
        before = (set(processes.of_directory(self.directory)), shared_memory(), self.descriptors(),
                  set(self.cluster.sockets()))
        daemons = self.pids()
        self.run_jobs(count)
        self.wait_quiet()
        self.assertEqual(self.pids(), daemons, "a daemon died and was started again")
        self.assertEqual(self.mapped_memfds(), {name: 0 for name in daemons})
        processes.wait_until(lambda: not self.zombies(), 10, lambda: f"no zombies: {self.zombies()}")
        self.assertEqual(set(processes.of_directory(self.directory)) - before[0], set())
        self.assertEqual(shared_memory() - before[1], set())
        self.assertEqual(os.listdir(self.cluster.temporary), [])
        after = self.descriptors()
        for name, number in before[2].items():
            self.assertLessEqual(after[name], number + DESCRIPTORS_SLACK, name)
        self.assertEqual(set(self.cluster.sockets()) - before[3], set())
        self.assertEqual(self.keeper_folders(), [])

    def keeper_folders(self):
        """What keepers left in the nodes' directories."""
        found = []
        for node in self.cluster.node_names():
            folder = os.path.join(self.cluster.state, "nodes", node, "keepers")
            found += os.listdir(folder) if os.path.isdir(folder) else []
        return found

    def wait_quiet(self):
        processes.wait_until(lambda: not self.keeper_folders(), 30, lambda: f"keepers gone: {self.keeper_folders()}")


class Few(Leak):
    def test_six_jobs(self):
        self.leaves_nothing(6)


class Many(Leak):
    def test_fifty_jobs(self):
        self.leaves_nothing(50)


if __name__ == "__main__":
    main()
