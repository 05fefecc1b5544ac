#!/usr/bin/env bash
# Note: --max-model-len and --max-num-seqs are those of the workload (2 sequences, 64 tokens in, 32 out), and there
#   is room for 900 such sequences; it listens on 127.0.0.1, for its own node alone. Options that are given to the
#   script win over its own.
# Note: The options are those for GPUs. On a CPU it takes the engine's CPU build and VLLM_CPU_KVCACHE_SPACE=1 (GiB
#   of cache for each rank; the plan needs 5.00 MiB).
set -euo pipefail

exec vllm serve demo/SmolLM2-135M \
  --tensor-parallel-size 1 \
  --dtype bfloat16 \
  --max-model-len 256 \
  --max-num-seqs 2 \
  --max-num-batched-tokens 2048 \
  --gpu-memory-utilization 0.9 \
  --host 127.0.0.1 \
  --port 8000 \
  "$@"
