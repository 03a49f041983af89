# SPDX-License-Identifier: Apache-2.0
"""Checks of a source tree and of built binaries. Each takes paths and gives a list of problems, one sentence each."""
import os
import re
import subprocess

import include_table as table

LINE_COLUMNS_MAX = 120
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70

SOURCE_FOLDERS = ("base", "proto", "ckpt", "scheduler", "agent", "client", "kernels", "parallel", "worker", "cli",
                  "tests", "scripts", "deploy", "cmake")
CPP = (".h", ".cc", ".cu", ".cuh", ".cpp")
TEXT = CPP + (".py", ".sh", ".proto", ".cmake", ".c")

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:root/|work/|home/(?!u/|user/|you/|ana/)\w+/)")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
CLOCK_SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|usleep|SleepFor)\s*\(|(?<![\w.>])(?:::)?sleep\s*\(\s*\d")
TIME_OF_DAY = re.compile(r"\bsystem_clock\b|\bgettimeofday\b|\btime\s*\(\s*(?:nullptr|NULL|0)\s*\)|\babsl::Now\s*\(")
# The wall clock is read in one place, for stamps that people read; gRPC's deadlines are made in one place, too.
TIME_OF_DAY_HOMES = ("base/clock.cc", "base/clock.h", "proto/channel.cc", "proto/channel.h")


def walk(root, folders=SOURCE_FOLDERS):
    """Relative paths of all text files of the source folders, sorted."""
    found = []
    for folder in folders:
        for directory, names, files in os.walk(os.path.join(root, folder)):
            names[:] = sorted(n for n in names if n not in ("__pycache__", ".git") and not n.startswith("build"))
            found += [os.path.relpath(os.path.join(directory, name), root) for name in sorted(files)]
    return found


def read_lines(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read().split("\n")


def is_test(path):
    name = os.path.basename(path)
    named_so = re.search(r"_test\.(?:cc|py)$|(?:^|_)(?:fake|testing)_?|_test_", name)
    return path.startswith("tests/") or "/testing/" in path or bool(named_so)


def folder_of(path, folders=None):
    """The longest folder of the table that holds `path`, or None."""
    known = folders if folders is not None else list(table.ARROWS) + list(table.CROSSING)
    best = None
    for folder in known:
        if path.startswith(folder + "/") and (best is None or len(folder) > len(best)):
            best = folder
    return best


def reachable(folder):
    """All folders that `folder` may include, itself among them."""
    seen, waiting = set(), [folder]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += table.ARROWS[name]
    return seen


def include_problem(source, quoted, target):
    """Why `source` may not include `target`, or None."""
    home = folder_of(source)
    if source in table.FREE_HEADERS:
        return free_header_problem(source, quoted, target)
    if home is None or home in table.CROSSING or target in table.FREE_HEADERS:
        return None
    if target.startswith("holdfast/v1/"):
        target = "proto/" + target
    owner = folder_of(target)
    if owner in table.CROSSING:
        return None if is_test(source) else f"{source}: includes {target}, which is test code"
    if owner is not None:
        allowed = reachable(home) | ({"base"} if is_test(source) else set())
        return None if owner in allowed else f"{source}: {home} may not include {owner} ({target})"
    if target.startswith(table.TEST_FRAMEWORK):
        return None if is_test(source) else f"{source}: includes {target} outside a test"
    if not quoted and is_system_header(target):
        return None
    if home in table.NO_THIRD_PARTY and not is_test(source):
        if target in table.NO_THIRD_PARTY[home]:
            return None
        return f"{source}: {home} includes no third party, but here is {target}"
    return third_party_problem(source, home, target)


def free_header_problem(source, quoted, target):
    """A header that everybody may include has to stay free of others."""
    if quoted or not is_system_header(target):
        return f"{source}: includes {target}, but is a header that everybody may include"
    return None


def is_system_header(target):
    if target in table.BARE_THIRD_PARTY or target.startswith(("sentencepiece", "cuda")):
        return False
    return "/" not in target or target.startswith(table.SYSTEM_PREFIXES)


def third_party_problem(source, home, target):
    for prefix, homes in table.THIRD_PARTY.items():
        if target.startswith(prefix):
            if home in homes or is_test(source):
                return None
            return f"{source}: {home} may not include {target}"
    return f"{source}: {target} is in no folder of the table and no known third party"


def check_includes(root):
    problems = []
    for path in walk(root):
        if not path.endswith(CPP):
            continue
        for line in read_lines(root, path):
            match = INCLUDE.match(line)
            if match:
                problem = include_problem(path, match[1] == '"', match[2])
                if problem:
                    problems.append(problem)
    return problems


def has_shebang(root, path):
    with open(os.path.join(root, path), "rb") as file:
        return file.read(2) == b"#!"


def check_text(root):
    """Line length, file length, licence line, leftovers, machine paths."""
    problems = []
    for path in walk(root):
        script = has_shebang(root, path)
        if not (path.endswith(TEXT) or script or os.path.basename(path) == "CMakeLists.txt"):
            continue
        lines = read_lines(root, path)
        if len(lines) - 1 > FILE_LINES_MAX:
            problems.append(f"{path}: {len(lines) - 1} lines, at most {FILE_LINES_MAX}")
        if path.endswith(CPP + (".py", ".sh")) or script:
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
                problems.append(f"{path}: no SPDX line at the top")
        problems += line_problems(path, lines)
    return problems


def line_problems(path, lines):
    problems = []
    own_patterns = path.startswith("tests/structure/")
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        if len(line) > LINE_COLUMNS_MAX and not path.endswith(".txt"):
            problems.append(f"{where}: {len(line)} columns, at most {LINE_COLUMNS_MAX}")
        if own_patterns:
            continue
        if UNFINISHED.search(line):
            problems.append(f"{where}: unfinished work: {line.strip()[:80]}")
        if MACHINE_PATH.search(line):
            problems.append(f"{where}: a path of one machine: {line.strip()[:80]}")
    return problems


def without_comment(line):
    return re.sub(r"//.*", "", line)


def check_clocks(root):
    """No waiting by the clock in product code, no time of day for durations."""
    problems = []
    for path in walk(root):
        if not path.endswith(CPP) or is_test(path):
            continue
        for number, line in enumerate(read_lines(root, path), 1):
            code = without_comment(line)
            if CLOCK_SLEEP.search(code):
                problems.append(f"{path}:{number}: waits by the clock, not for an event: {line.strip()[:80]}")
            if TIME_OF_DAY.search(code) and path not in TIME_OF_DAY_HOMES:
                problems.append(f"{path}:{number}: time of day; use base/clock.h: {line.strip()[:80]}")
    return problems


# What may stand at column 0 and have parentheses without being a function.
NOT_A_FUNCTION = ("namespace", "struct", "class", "enum", "union", "extern", "static_assert", "#", "//", "}", " ",
                  "const", "inline constexpr", "constexpr", "using", "template")


def check_function_length(root):
    """Functions at column 0, from their first line to the closing brace at column 0."""
    problems = []
    for path in walk(root):
        if path.endswith(CPP) and not is_test(path):
            problems += [f"{path}:{start}: a function of {length} lines, at most {FUNCTION_LINES_MAX}"
                         for start, length in functions(read_lines(root, path)) if length > FUNCTION_LINES_MAX]
    return problems


def functions(lines):
    """(first line, number of lines) of each function at column 0."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("}"):
            if start is not None:
                yield start, number - start + 1
            start = None
        elif line and not line.startswith(NOT_A_FUNCTION):
            whole = line.rstrip().endswith((";", "}"))  # a declaration, or a function in one line
            start = number if "(" in line and not whole else None


def check_tests_registered(root):
    """A test that no CMakeLists.txt names is not a test."""
    problems = []
    paths = walk(root)
    named = {path: "\n".join(read_lines(root, path)) for path in paths if os.path.basename(path) == "CMakeLists.txt"}
    for path in paths:
        if not re.search(r"_test\.(?:cc|cu|py)$", path):
            continue
        folder, registered = os.path.dirname(path), False
        while folder and not registered:
            text = named.get(os.path.join(folder, "CMakeLists.txt"), "")
            registered = names_source(text, os.path.relpath(path, folder)) or python_name_registered(path, text)
            folder = os.path.dirname(folder)
        if not registered:
            problems.append(f"{path}: no CMakeLists.txt names it")
    return problems


def names_source(text, relative):
    return re.search(r"(?<![\w/.-])" + re.escape(relative) + r"(?![\w.-])", text) is not None


def python_name_registered(path, text):
    """Python tests are registered by module name: holdfast_python_test(x_test ...)."""
    name, extension = os.path.splitext(os.path.basename(path))
    return extension == ".py" and re.search(r"holdfast_python_test\(\s*" + re.escape(name) + r"\b", text) is not None


def check_document_links(root):
    """Relative links of documents lead to files."""
    problems = []
    documents = [name for name in sorted(os.listdir(root)) if name.endswith(".md")]
    for path in documents + [path for path in walk(root, SOURCE_FOLDERS + ("docs",)) if path.endswith(".md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", "\n".join(read_lines(root, path))):
            if "://" not in target and not os.path.exists(os.path.join(root, os.path.dirname(path), target)):
                problems.append(f"{path}: links to {target}, which does not exist")
    return problems


def needed_libraries(binary):
    """NEEDED entries of an ELF file, by readelf -d."""
    text = subprocess.run(["readelf", "-d", binary], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", text)


def loaded_libraries(binary):
    """Names of everything the loader would load, by ldd."""
    text = subprocess.run(["ldd", binary], check=False, capture_output=True, text=True).stdout
    return [line.split()[0].split("/")[-1] for line in text.splitlines() if line.strip()]


def link_problems(name, needed, loaded):
    """What is wrong with the libraries of the binary `name` of the table."""
    allowed, refused = table.BINARIES[name]
    problems = []
    for library in needed:
        if allowed is not None and not library.startswith(allowed + table.SANITIZERS):
            problems.append(f"{name}: links {library}; allowed: {' '.join(allowed)}")
    for library in sorted(set(needed) | set(loaded)):
        if any(part in library for part in refused):
            problems.append(f"{name}: loads {library}, which is refused there")
    return problems


def find_binary(build, name):
    """The path of a built binary, or None."""
    for folder in ("bin", "client", "lib"):
        path = os.path.join(build, folder, name)
        if os.path.exists(path):
            return path
    return None


def check_links(build):
    problems = []
    for name in table.BINARIES:
        path = find_binary(build, name)
        if path is not None:
            problems += link_problems(name, needed_libraries(path), loaded_libraries(path))
    return problems
