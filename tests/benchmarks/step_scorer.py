# SPDX-License-Identifier: Apache-2.0
"""Throughput of the local step scorer, beside scoring one step at a time as the released code of PSPO does.

    python tests/benchmarks/step_scorer.py

Both score the same steps of the same responses with the same weights and the same inputs, in one process, in turn; the
scores must agree. One at a time means: for every step, in order, tokenise one pair, one forward pass of one row,
softmax, and the score as a Python number; what was scored before is scored again. The models are BERT-shaped with
random weights. A shape is measured with different numbers of tokens per pass, once with responses that share nothing
(no step occurs twice, so the cache does nothing) and once with groups of responses that share some of their steps, as
samples of one prompt by a policy that has become sure of itself do. Prints ratios, the median of rounds in turn, and
writes step_scorer.json beside this file.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks"), str(ROOT / "tests" / "step_rm")]

import torch  # noqa: E402
from machine import describe  # noqa: E402
from tiny_step_rm import bert_tokenizer, save_bert  # noqa: E402

from prime_ext.step_rm.description import FILE, Description, PairFormat  # noqa: E402
from prime_ext.step_rm.labels import LABELS  # noqa: E402
from prime_ext.step_rm.scorers.local import LocalScorer  # noqa: E402
from prime_ext.step_rm.scorers.protocol import Chain  # noqa: E402
from prime_ext.utils.files import write_json  # noqa: E402

# Layers and width; the attention heads are two.
SHAPES = {"2 x 16": (2, 16), "2 x 128": (2, 128), "4 x 256": (4, 256), "12 x 384": (12, 384)}
VOCABULARY = bert_tokenizer().get_vocab()


def responses(prompts: int, samples: int, share: float, seed: int) -> list[Chain]:
    """Responses of 2 to 8 steps of 8 to 30 words; each step is the one of the group's first response with chance
    ``share``, so that pairs of steps recur."""
    rng = random.Random(seed)
    words = [word for word in VOCABULARY if word.isalnum()]

    def step(number: int) -> str:
        return f"Step {number}: " + " ".join(rng.choices(words, k=rng.randint(8, 30))) + "."

    chains = []
    for _ in range(prompts):
        first = [step(number) for number in range(1, rng.randint(2, 8) + 1)]
        chains.append(Chain(tuple(first)))
        for _ in range(samples - 1):
            length = rng.randint(2, 8)
            steps = [
                first[number - 1] if number <= len(first) and rng.random() < share else step(number)
                for number in range(1, length + 1)
            ]
            chains.append(Chain(tuple(steps)))
    return chains


@torch.inference_mode()
def one_at_a_time(scorer: LocalScorer, chains: list[Chain]) -> list[list[float]]:
    """Scores as the released code makes them, with the same model and tokenizer."""
    tokenizer, model, device = scorer.encoder.tokenizer, scorer.model, scorer.device
    found = []
    for chain in chains:
        scores = []
        for at, step in enumerate(chain.steps):
            pair = (chain.steps[at - 1], step) if at else (step,)
            inputs = tokenizer(*pair, return_tensors="pt", max_length=512, truncation=True)
            ids_1T, mask_1T = inputs["input_ids"].to(device), inputs["attention_mask"].to(device)
            logits_1C = model(input_ids=ids_1T, attention_mask=mask_1T).logits
            scores.append(logits_1C.float().softmax(-1)[0][2].item())
        found.append(scores)
    return found


def measure(path: Path, chains: list[Chain], batch_tokens: list[int], rounds: int, device: str) -> dict[str, object]:
    """Steps per second of both, in turn, and their ratio."""
    n_steps = sum(len(chain.steps) for chain in chains)
    slow, fast = [], {size: [] for size in batch_tokens}
    for number in range(rounds + 1):
        for size in [None, *batch_tokens]:
            scorer = LocalScorer(path, device=device, dtype="float32", batch_tokens=size or 1)
            if device != "cpu":
                # First use of the device.
                scorer.score_now([Chain(("warm up",))])
            start = time.perf_counter()
            if size is None:
                expected = one_at_a_time(scorer, chains)
            else:
                found = [list(result.scores) for result in scorer.score_now(chains)]
            seconds = time.perf_counter() - start
            if size is not None:
                worst = max(abs(a - b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True))
                assert worst < 1e-4, worst
            # The first round warms up.
            if number:
                (slow if size is None else fast[size]).append(n_steps / seconds)
    ratios = {size: statistics.median(a / b for a, b in zip(fast[size], slow, strict=True)) for size in batch_tokens}
    return {
        "steps": n_steps,
        "distinct inputs": len({item.ids for c in chains for item in scorer.encoder.encode_steps("", c.steps)}),
        "steps per second, one at a time": round(statistics.median(slow), 1),
        "steps per second, batched": {str(size): round(statistics.median(fast[size]), 1) for size in batch_tokens},
        "ratio": {str(size): round(ratio, 2) for size, ratio in ratios.items()},
        "best ratio": round(max(ratios.values()), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8, help="responses per prompt")
    parser.add_argument("--share", type=float, default=0.9, help="of the steps that a response has in common")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=["2 x 16", "2 x 128", "4 x 256"], choices=list(SHAPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, object] = {}
    for name in options.shapes:
        layers, width = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = save_bert(Path(folder) / "m", size=width, layers=layers, positions=512, scale=0.05)
            (path / FILE).write_text(Description(PairFormat(), 1.0, LABELS).to_json())
            for kind, share in (("nothing shared", 0.0), ("steps shared", options.share)):
                chains = responses(options.prompts, options.samples, share, seed=0)
                found = measure(path, chains, options.batch_tokens, options.rounds, options.device)
                results[f"{name}, {kind}"] = found
                print(f"{name}, {kind}: {found['best ratio']}x", flush=True)
    record = {
        "settings": {key: str(value) for key, value in vars(options).items() if key != "output"},
        "results": results,
        "machine": describe(options.device),
    }
    print(json.dumps(record, indent=2))
    write_json(options.output, record)


if __name__ == "__main__":
    main()
