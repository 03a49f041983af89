# SPDX-License-Identifier: Apache-2.0
"""unpack_wheels.py TARGET WHEELS SUMS: unpacks the parts of the wheels that building and running need.

Kept: torch/lib, torch/include, nvidia/. Everything else of the wheels (Python code, tests) is left out.
"""
import os
import sys
import zipfile

KEPT = ("torch/lib/", "torch/include/", "nvidia/")


def unpack(archive, target):
    with zipfile.ZipFile(archive) as wheel:
        for entry in wheel.infolist():
            name = entry.filename
            if entry.is_dir() or not name.startswith(KEPT):
                continue
            if os.path.isabs(name) or ".." in name.split("/"):
                raise ValueError(f"{archive}: entry {name!r} points outside the target")
            wheel.extract(entry, target)


def main():
    target, wheels, sums = sys.argv[1:4]
    os.makedirs(target)
    with open(sums, encoding="utf-8") as lines:
        for line in lines:
            unpack(os.path.join(wheels, line.split()[1]), target)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        sys.exit(f"error: {error}")
