# SPDX-License-Identifier: Apache-2.0
"""A fresh Debian 12 root file system in a directory, with this machine's network settings."""
import os
import re
import shutil
import subprocess

COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/usr/local/share/ca-certificates")
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
CA_BUNDLE_INSIDE = "/etc/holdfast-test-ca.crt"
MIRROR = re.compile(r"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(https?://\S*debian/?)(?:\s|$)", re.M)


def mirror():
    """The first Debian mirror of this machine's apt sources."""
    for folder in ("/etc/apt", "/etc/apt/sources.list.d"):
        for name in sorted(os.listdir(folder)):
            if name.endswith((".list", ".sources")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    match = MIRROR.search(file.read())
                if match:
                    return match[1]
    return "http://deb.debian.org/debian"


def make(root, include=""):
    """debootstrap into `root`; then what makes the network usable from this machine: names, certificates, pip."""
    os.makedirs(root, exist_ok=True)
    os.chmod(root, 0o755)  # its other users must pass, too
    command = ["debootstrap", "--variant=minbase"] + ([f"--include={include}"] if include else [])
    subprocess.run(command + ["bookworm", root, mirror()], check=True, stdin=subprocess.DEVNULL)
    for path in COPIED:
        target = root + path
        if os.path.isdir(path):
            shutil.copytree(path, target, dirs_exist_ok=True)
        elif os.path.exists(path):
            if os.path.lexists(target):
                os.unlink(target)
            shutil.copy(path, target)
    if os.path.exists(CA_BUNDLE):
        shutil.copy(CA_BUNDLE, root + CA_BUNDLE_INSIDE)
    with open(root + "/etc/apt/sources.list", "w", encoding="ascii") as file:
        file.write(f"deb {mirror()} bookworm main\n")
