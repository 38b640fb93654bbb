#!/bin/sh
# Checks every kernel against its reference at the run's shapes and times it, then trains `d768`
# with all its experts for 50 steps, on one GPU:
#
#     benches/gpu.sh [--dry-run] [--out FILE] [--profile DIR]
#
# Needs a python3 (or $PYTHON) with JAX, flax and numpy; no build and no installation of this
# package. Exits 0 if every kernel agrees with its reference and the loss falls. --dry-run rehearses
# on a CPU with small shapes; its times mean nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
path="$here/../python"
"$python" -c 'import jaxtyping' 2>/dev/null || path="$path:$here/stand_ins"
case " $* " in
*" --dry-run "*) JAX_PLATFORMS=cpu && export JAX_PLATFORMS ;;
esac
# Inputs and both sides of a comparison are several gigabytes each.
XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}
export XLA_PYTHON_CLIENT_MEM_FRACTION
PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$here/gpu.py" "$@"
