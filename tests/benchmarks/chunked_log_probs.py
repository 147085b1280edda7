# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Peak memory and time of log-probabilities at a vocabulary of 151,936, chunked and plain, forward and backward.

    python tests/benchmarks/chunked_log_probs.py

Each measurement is a process of its own, because the peak of a process never falls. What a process needs without any
logits (interpreter, inputs, gradients) is measured too and subtracted. Prints and writes chunked_log_probs.json beside
this file.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

MIB = 2**20


def measure(kind: str, tokens: int, vocabulary: int, width: int, chunk: int) -> dict[str, float]:
    """Peak memory in MiB and seconds of one forward and backward pass, in this process."""
    import torch

    from prime_ext.algorithms.chunked_log_probs import chunked_log_probs, plain_log_probs

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(tokens, width, generator=generator).requires_grad_()
    weight_VH = (0.1 * torch.randn(vocabulary, width, generator=generator)).requires_grad_()
    target_N = torch.randint(vocabulary, (tokens,), generator=generator)
    start = time.perf_counter()
    if kind == "nothing":
        hidden_NH.grad, weight_VH.grad = torch.ones_like(hidden_NH), torch.ones_like(weight_VH)
        total = 0.0
    else:
        log_prob_N = (
            chunked_log_probs(hidden_NH, weight_VH, target_N, chunk)
            if kind == "chunked"
            else plain_log_probs(hidden_NH, weight_VH, target_N)
        )
        log_prob_N.sum().backward()
        total = float(log_prob_N.detach().double().sum())
    seconds = time.perf_counter() - start
    return {
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": seconds,
        "log_prob_sum": total,
        "gradient_norm": float(hidden_NH.grad.double().norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--kind", choices=("nothing", "chunked", "plain"), help="measure one kind in this process")
    arguments = parser.parse_args()
    shape = (arguments.tokens, arguments.vocabulary, arguments.width, arguments.chunk)
    if arguments.kind:
        print(json.dumps(measure(arguments.kind, *shape)))
        return

    import torch

    names = ("tokens", "vocabulary", "width", "chunk")
    options = [part for name, value in zip(names, shape, strict=True) for part in (f"--{name}", str(value))]
    results = {}
    for kind in ("nothing", "chunked", "plain"):
        command = [sys.executable, __file__, "--kind", kind, *options]
        results[kind] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    floor = results.pop("nothing")["peak_mib"]
    for kind, result in results.items():
        result["logits_mib"] = round(result.pop("peak_mib") - floor, 1)
        print(f"{kind:8s} {result['logits_mib']:8.1f} MiB above inputs and gradients, {result['seconds']:.2f} s")
    report = {
        "settings": dict(zip(names, shape, strict=True)) | {"threads": 1, "dtype": "float32"},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "one_matrix_of_logits_mib": round(arguments.tokens * arguments.vocabulary * 4 / MIB, 1),
        "one_chunk_of_logits_mib": round(arguments.chunk * arguments.vocabulary * 4 / MIB, 1),
        "inputs_and_gradients_peak_mib": round(floor, 1),
        "results": results,
        "plain_over_chunked_memory": round(results["plain"]["logits_mib"] / results["chunked"]["logits_mib"], 2),
        "chunked_over_plain_seconds": round(results["chunked"]["seconds"] / results["plain"]["seconds"], 2),
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"plain / chunked memory {report['plain_over_chunked_memory']}; written to {arguments.output}")


if __name__ == "__main__":
    main()
