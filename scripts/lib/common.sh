# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of this folder. Sets ROOT (the tree) and CACHE (downloads), defines Say and Die.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${HOLDFAST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast}

Say() { printf '%s\n' "$*" >&2; }
Die() { Say "error: $*"; exit 1; }
