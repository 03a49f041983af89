# SPDX-License-Identifier: Apache-2.0
"""scripts/bench pytorch: an unmodified PyTorch script under `holdfast run` and under torchrun, in turns.

The script is the peers' unmodified_train.py (DDP on Gloo, DataLoader worker, DCP every 10 steps); rank 1 gets SIGKILL
once it has finished a step drawn from a seed. Then examples/three_lines, which keeps its state in memory by the package
`holdfast`, the same way. What the package costs is measured by bench_package.py, how soon a hang is named by
bench_look.py. Needs a Python with torch: HOLDFAST_PEERS, and HOLDFAST_PEERS_DIR for the scripts.
"""
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import types

import bench_look
import bench_package
import build
import drill

RUNS = 10
RUNS_FULL = 100
SEED = 1
LIMIT_S = 60           # for one run from its kill on
START_RUNS = 10
START_RANKS = 4
THREE_LINES_STEPS = 1200
THREE_LINES_LIMIT_S = 180
BINARIES = ("holdfast", "holdfast-scheduler", "holdfast-agent", "holdfast-keeper", "holdfast-tcp-store",
            "holdfast-ckpt")
METRICS = ("start_vs_torchrun", "marks_overhead_pct", "save_stall_vs_dcp", "python_named_s", "unmodified_to_step_s",
           "threelines_to_step_s")
FIRST_LINE = "import os, time\nopen(os.environ['FIRST_LINE'], 'a').write(f'{time.monotonic()}\\n')\n"


def launchers(binaries, python):
    """{name: words before the script}, ours first."""
    torchrun = os.path.join(os.path.dirname(python), "torchrun")
    return {"holdfast run": lambda ranks: [os.path.join(binaries, "holdfast"), "run", f"--nproc-per-node={ranks}"],
            "torchrun": lambda ranks: [torchrun, "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=3"]}


def load_peer(folder):
    if not folder or not os.path.exists(os.path.join(folder, "unmodified_rate.py")):
        raise build.StepFailed(f"HOLDFAST_PEERS_DIR={folder} has no unmodified_rate.py")
    path = os.path.join(folder, "unmodified_rate.py")
    with open(path, encoding="utf-8") as file:
        source = file.read()
    # It is a program without a guard: all of it but the call at its end.
    peer = types.ModuleType("unmodified_rate")
    peer.__file__ = path
    exec(compile(source.rpartition("\nmain()")[0], path, "exec"), peer.__dict__)  # pylint: disable=exec-used
    return peer


def recoveries(peer, words, runs):
    """{launcher: [(recovered, bitwise equal, seconds to the next step or None)]}"""
    kinds = {name: make(2) for name, make in words.items()}
    ok, oracle, _ = peer.attempt(kinds["holdfast run"], 0, 2 * LIMIT_S)
    if not ok or not oracle:
        raise build.StepFailed("the undisturbed run of unmodified_train.py failed")
    rng, found = random.Random(SEED), {name: [] for name in kinds}
    for index in range(runs):
        step = rng.randint(11, 45)
        for name, command in kinds.items():
            ok, sha, seconds = peer.attempt(command, step, LIMIT_S)
            found[name].append((ok, ok and sha == oracle, seconds if ok else None))
            build.say(f"run {index + 1}/{runs} {name}: kill at step {step}: "
                      f"{'recovered' if ok else 'NOT recovered'}, {seconds and round(seconds, 2)} s")
    return found


def start_seconds(command, directory):
    """From the launcher's start to the first line of the script in the last rank."""
    marks = os.path.join(directory, "first_line")
    if os.path.exists(marks):
        os.remove(marks)
    script = os.path.join(directory, "first_line.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(FIRST_LINE)
    began = time.monotonic()
    subprocess.run([*command, script], env={**os.environ, "FIRST_LINE": marks}, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
    with open(marks, encoding="utf-8") as file:
        moments = [float(line) for line in file]
    if len(moments) != START_RANKS:
        raise build.StepFailed(f"{len(moments)} of {START_RANKS} ranks reached their first line")
    return max(moments) - began


def starts(words, directory, runs):
    found = {name: [] for name in words}
    for _ in range(runs):
        for name, make in words.items():
            found[name].append(start_seconds(make(START_RANKS), directory))
    return found


def rank_process(run, rank):
    """The process of a rank below `run`, by what the kernel shows of its environment and its parents."""
    parents, ranks = {}, []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"RANK={rank}".encode() in file.read().split(b"\0"):
                    ranks.append(int(name))
        except (OSError, IndexError):
            continue  # gone meanwhile

    def below(pid):
        while pid > 1 and pid != run:
            pid = parents.get(pid, 0)
        return pid == run

    # A data loader's worker has its parent's environment, and a standby is started after its rank.
    mine = sorted(pid for pid in ranks if below(pid))
    return next(pid for pid in mine if parents[pid] not in mine)


def three_lines_seconds(binaries, directory, step, undisturbed=False):
    """(seconds from the kill to the next finished step that is shown, digest of the end)."""
    script = os.path.join(build.ROOT, "examples", "three_lines", "train.py")
    command = [os.path.join(binaries, "holdfast"), "run", "--nproc-per-node=2", script, f"--steps={THREE_LINES_STEPS}"]
    run = subprocess.Popen(command, env=bench_package.environment(binaries, directory), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    late = threading.Timer(THREE_LINES_LIMIT_S, run.terminate)
    late.start()
    killed = seconds = digest = None
    resumed = False
    with run:
        for line in run.stdout:
            found = re.match(r"1\| step (\d+) ", line)
            if killed is None and not undisturbed and found and int(found[1]) >= step:
                pid = rank_process(run.pid, 1)
                killed = time.monotonic()
                os.kill(pid, signal.SIGKILL)
            resumed = resumed or (killed is not None and "| resumed from step" in line)
            if resumed and seconds is None and "| step " in line:
                seconds = time.monotonic() - killed
            if "| digest " in line:
                digest = line.split()[-1]
    late.cancel()
    if run.returncode != 0 or digest is None:
        raise build.StepFailed(f"examples/three_lines ended with {run.returncode} (it has {THREE_LINES_LIMIT_S} s)")
    if not undisturbed and seconds is None:
        raise build.StepFailed(f"examples/three_lines: no step was shown after the kill at step {step}")
    return seconds, digest


def three_lines_line(binaries, directory, runs):
    _, oracle = three_lines_seconds(binaries, directory, 0, undisturbed=True)
    rng, found, same = random.Random(SEED), [], 0
    for index in range(runs):
        # Late enough for the standbys to be there, which start two seconds after the ranks.
        step = rng.randint(THREE_LINES_STEPS // 2, THREE_LINES_STEPS * 3 // 4)
        seconds, digest = three_lines_seconds(binaries, directory, step)
        found.append(seconds)
        same += digest == oracle
        build.say(f"run {index + 1}/{runs} three lines: kill at step {step}: {round(seconds, 2)} s")
    found.sort()
    return {"bench": "pytorch", "case": "sigkill", "metric": "threelines_to_step_s", "unit": "s", "runs": runs,
            "value": drill.rounded(drill.median(found)), "low": drill.rounded(found[0]),
            "high": drill.rounded(found[-1]), "bitwise": same, "against": None, "against_value": None}


def recovery_lines(found):
    ours, theirs = found["holdfast run"], found["torchrun"]
    seconds = {name: sorted(s for _, _, s in rows if s is not None) for name, rows in found.items()}
    mine = seconds["holdfast run"]
    common = {"bench": "pytorch", "case": "sigkill", "runs": len(ours), "against": "torchrun"}
    for index, metric in ((0, "unmodified_recovered"), (1, "unmodified_bitwise")):
        yield {**common, "metric": metric, "value": sum(row[index] for row in ours), "unit": f"of {len(ours)}",
               "against_value": sum(row[index] for row in theirs)}
    yield {**common, "metric": "unmodified_to_step_s", "unit": "s", "value": drill.rounded(drill.median(mine)),
           "low": drill.rounded(mine[0] if mine else None), "high": drill.rounded(mine[-1] if mine else None),
           "against_value": drill.rounded(drill.median(seconds["torchrun"])),
           "against_runs": len(seconds["torchrun"])}


def start_line(found):
    ours, theirs = sorted(found["holdfast run"]), sorted(found["torchrun"])
    return {"bench": "pytorch", "case": f"{START_RANKS} ranks", "metric": "start_vs_torchrun", "unit": "ratio",
            "runs": len(ours),
            "value": drill.rounded(drill.median(ours) / drill.median(theirs)),
            "start_s": drill.rounded(drill.median(ours)),
            "low": drill.rounded(ours[0]), "high": drill.rounded(ours[-1]), "against": "torchrun",
            "against_value": drill.rounded(drill.median(theirs))}


def run(options, directory):
    """Prints the lines of this bench."""
    python = os.environ.get("HOLDFAST_PEERS")
    if not python and options.name is None:
        build.say("pytorch: skipped, since HOLDFAST_PEERS names no Python with torch")
        return
    if not python:
        raise build.StepFailed("bench pytorch needs HOLDFAST_PEERS, a Python with torch (docs/benchmarks.md)")
    os.environ["PYTHON_EXEC"] = python
    binaries = build.binaries("release", BINARIES)
    if not os.environ.get("HOLDFAST_BIN"):
        build.build("release", ("holdfast_c_abi",))
    metrics = options.metric or METRICS
    if "unmodified_to_step_s" in metrics:
        load_peer(os.environ.get("HOLDFAST_PEERS_DIR"))  # what is wrong with it is said before all else takes its time
    for metric in metrics:
        for line in lines(metric, options, directory, binaries, python):
            print(json.dumps(line), flush=True)


def lines(metric, options, directory, binaries, python):
    """The lines of one of METRICS."""
    words = launchers(binaries, python)
    if metric == "start_vs_torchrun":
        return [start_line(starts(words, directory, options.runs or START_RUNS))]
    if metric == "unmodified_to_step_s":
        peer = load_peer(os.environ.get("HOLDFAST_PEERS_DIR"))
        return recovery_lines(recoveries(peer, words, options.runs or (RUNS_FULL if options.full else RUNS)))
    if metric == "threelines_to_step_s":
        return [three_lines_line(binaries, directory, options.runs or RUNS)]
    package = {"marks_overhead_pct": bench_package.marks_overhead, "save_stall_vs_dcp": bench_package.save_stall,
               "python_named_s": bench_look.python_named}
    return package[metric](options, directory, binaries)
