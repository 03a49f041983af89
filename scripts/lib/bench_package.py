# SPDX-License-Identifier: Apache-2.0
"""scripts/bench pytorch, what the package `holdfast` costs a training script: the thread that saves, and the marks.

bench_package_rank.py measures inside the ranks, which `holdfast run` started: the arena is the keeper's, and the agent
writes to a store.
"""
import json
import os
import signal
import subprocess
import sys
import zipfile

import build
import drill

SAVES, SAVES_FULL = 8, 21       # the first is reported alone
STATE_BYTES = 1_000_000_000     # of all ranks together
STALL_RANKS = (1, 2)            # the last one is the headline
STALL_METRICS = (("save_stall_vs_dcp_stager_kept", "dcp.async_save(stager kept)"),
                 ("save_stall_vs_dcp", "dcp.async_save"))
STALL_LIMIT_S = 540
MARK_RUNS, MARK_STEPS, MARK_RANKS = 5, 300, 2
MARK_LIMIT_S = 180
TAIL_BYTES = 4000
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_package_rank.py")


def install_package(binaries, directory):
    """The package `holdfast` as a user has it: the wheel of this tree and build, unpacked. The caller of `holdfast run`
    cannot give a rank a HOLDFAST_LIBRARY, so the library has to be inside."""
    library = os.path.join(os.path.dirname(os.path.abspath(binaries)), "lib", "libholdfast.so.1")
    if not os.path.exists(library):
        raise build.StepFailed(f"{library} is not there: HOLDFAST_BIN has to be the bin folder of a whole build, with "
                               "lib beside it (target holdfast_c_abi)")
    site = os.path.join(directory, "site")
    if not os.path.exists(site):
        done = build.run([sys.executable, "-B", os.path.join(build.ROOT, "scripts", "package"), directory, "--library",
                          library], stdout=subprocess.PIPE, text=True)
        with zipfile.ZipFile(done.stdout.splitlines()[-1]) as wheel:
            wheel.extractall(site)
    return site


def environment(binaries, directory):
    """Of a run whose ranks import the package; PYTHON_EXEC is set by bench_pytorch."""
    path = os.pathsep.join(filter(None, [install_package(binaries, directory), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TMPDIR": directory}


def command(binaries, state, ranks, *words):
    """No standbys: they would take the CPUs from what is measured while they import."""
    return [os.path.join(binaries, "holdfast"), "run", f"--nproc-per-node={ranks}", "--standby=none",
            "--max-restarts=0", "--state", state, *words]


def finish(process, log, limit_s):
    """Waits for a run to end; one that failed or took too long is an error that shows its last words."""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = f"nothing within {limit_s} s"
        stop(process)
    if code != 0:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - TAIL_BYTES))
            tail = file.read().decode(errors="replace")
        raise build.StepFailed(f"{' '.join(process.args)} ended with {code}:\n{tail}")


def stop(process):
    """Ctrl-C, after which a run leaves nothing; a second one kills its ranks at once."""
    for signo in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        process.send_signal(signo)
        try:
            process.wait(30)
            return
        except subprocess.TimeoutExpired:
            build.say(f"pid {process.pid} goes on after {signo.name}")
    process.wait()


def measured(binaries, directory, name, ranks, limit_s, *words):
    """What each rank of one run wrote."""
    folder = os.path.join(directory, name)
    os.mkdir(folder)
    log, state = os.path.join(folder, "log"), os.path.join(folder, "s")
    words = [SCRIPT, *words, "--store", os.path.join(state, "store"), folder]
    with open(log, "wb") as output:
        process = subprocess.Popen(command(binaries, state, ranks, *words), env=environment(binaries, directory),
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        finish(process, log, limit_s)
    finally:
        if process.poll() is None:
            stop(process)
    found = []
    for rank in range(ranks):
        with open(os.path.join(folder, f"rank{rank}.json"), encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def slowest(found):
    """[{who: seconds}] of the rank that was kept longest, turn by turn: all others wait for it in their next step."""
    return [{who: max(turn[who] for turn in turns) for who in turns[0]}
            for turns in zip(*(rank["turns"] for rank in found))]


def stall_line(metric, peer, turns, ranks, size):
    """The first save, which makes the arena, is a field of its own."""
    first, rest = turns[0], turns[1:]

    def median(who):
        return drill.rounded(drill.median([turn[who] for turn in rest]), 4)

    ratios = sorted(turn["holdfast"] / turn[peer] for turn in rest)
    return {"bench": "pytorch", "case": f"{ranks} ranks" if ranks > 1 else "1 rank", "metric": metric,
            "unit": "ratio", "value": drill.rounded(drill.median(ratios)), "runs": len(rest),
            "low": drill.rounded(ratios[0]), "high": drill.rounded(ratios[-1]), "against": peer,
            "against_value": median(peer), "stall_s": median("holdfast"),
            "first_s": drill.rounded(first["holdfast"], 4), "against_first_s": drill.rounded(first[peer], 4),
            "memcpy_s": median("memcpy"), "bytes": size}


def save_stall(options, directory, binaries):
    saves = 1 + options.runs if options.runs else SAVES_FULL if options.full else SAVES
    for ranks in STALL_RANKS:
        found = measured(binaries, directory, f"stall{ranks}", ranks, STALL_LIMIT_S, "stall", f"--count={saves}",
                         f"--bytes={STATE_BYTES // ranks}")
        turns = slowest(found)
        for index, turn in enumerate(turns):
            build.say(f"save {index + 1}/{saves}, {ranks} rank(s): "
                      + ", ".join(f"{who} {seconds:.4f} s" for who, seconds in turn.items()))
        for metric, peer in STALL_METRICS:
            yield stall_line(metric, peer, turns, ranks, sum(rank["bytes"] for rank in found))


def marks_line(runs):
    """`runs`: for each run what its ranks measured. The rank whose marks weigh most counts."""
    def percent(rank):
        return drill.median([100 * marks / step for marks, step, _ in rank["steps"]])

    def of_all(pick):
        return drill.median([pick(rank, row) for ranks in runs for rank in ranks for row in rank["steps"]])

    values = sorted(max(percent(rank) for rank in ranks) for ranks in runs)
    return {"bench": "pytorch", "case": "three_lines", "metric": "marks_overhead_pct", "unit": "%",
            "value": drill.rounded(drill.median(values), 4), "runs": len(values), "low": drill.rounded(values[0], 4),
            "high": drill.rounded(values[-1], 4), "against": None, "against_value": None,
            "marks_us": drill.rounded(of_all(lambda _, row: row[0] / 1000)),
            "step_ms": drill.rounded(of_all(lambda _, row: row[1] / 1e6)),
            "marks_per_step": of_all(lambda _, row: row[2]),
            "clock_us": drill.rounded(of_all(lambda rank, row: rank["clock_ns"] * row[2] / 1000))}


def marks_overhead(options, directory, binaries):
    runs = []
    for index in range(options.runs or MARK_RUNS):
        runs.append(measured(binaries, directory, f"marks{index}", MARK_RANKS, MARK_LIMIT_S, "marks",
                             f"--count={MARK_STEPS}"))
        build.say(f"run {index + 1}/{options.runs or MARK_RUNS} marks: {marks_line(runs[-1:])['value']} %")
    yield marks_line(runs)
