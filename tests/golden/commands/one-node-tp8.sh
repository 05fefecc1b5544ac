#!/usr/bin/env bash
# Note: --max-model-len and --max-num-seqs are those of the workload (64 sequences, 4,096 tokens in, 512 out), and
#   there is room for 96 such sequences; it listens on 127.0.0.1, for its own node alone. Options that are given to
#   the script win over its own.
# Note: The release is a card without files: put the folder or hub id of the weights for MODEL_FOLDER_OR_HUB_ID.
# Note: --trust-remote-code: the config names the release's own Python (auto_map), which the engine will run with
#   your rights. Read that code first; drop the option if this version knows the model.
set -euo pipefail

exec vllm serve MODEL_FOLDER_OR_HUB_ID \
  --tensor-parallel-size 8 \
  --dtype bfloat16 \
  --max-model-len 4608 \
  --max-num-seqs 64 \
  --max-num-batched-tokens 8192 \
  --gpu-memory-utilization 0.9 \
  --trust-remote-code \
  --host 127.0.0.1 \
  --port 8000 \
  "$@"
