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

import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import harness
import torch
from tiny_step_rm import bert_tokenizer, described, save_bert

from prime_ext.step_rm.description import PairFormat
from prime_ext.step_rm.scorers.local import LocalScorer
from prime_ext.step_rm.scorers.protocol import Chain

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
    options = {"device": device, "dtype": "float32", "cache_size": 0}
    scorers = {str(size): LocalScorer(path, batch_tokens=size, **options) for size in batch_tokens}
    scores: dict[str, list[list[float]]] = {}

    def alone() -> None:
        scores["alone"] = one_at_a_time(next(iter(scorers.values())), chains)

    def batched(size: str) -> None:
        scores[size] = [list(result.scores) for result in scorers[size].score_now(chains)]

    ways = {"alone": alone, **{size: partial(batched, size) for size in scorers}}
    seconds = harness.in_turn(ways, rounds, time.perf_counter)
    expected = torch.tensor(sum(scores["alone"], []))
    for found in scores.values():
        torch.testing.assert_close(torch.tensor(sum(found, [])), expected, atol=1e-4, rtol=0)
    n_steps = len(expected)
    speed = {way: [n_steps / each for each in values] for way, values in seconds.items()}
    slow = speed.pop("alone")
    ratios = {size: statistics.median(a / b for a, b in zip(fast, slow, strict=True)) for size, fast in speed.items()}
    read = next(iter(scorers.values())).read(chains)
    return {
        "steps": n_steps,
        "distinct inputs": len({item for items in read for item in items}),
        "steps per second, one at a time": round(statistics.median(slow), 1),
        "steps per second, batched": {size: round(statistics.median(fast), 1) for size, fast in speed.items()},
        "ratio": {size: round(ratio, 2) for size, ratio in ratios.items()},
        "best ratio": round(max(ratios.values()), 2),
    }


def main() -> None:
    parser = harness.parser(__doc__, prompts=4, rounds=3, threads=1)
    parser.add_argument("--samples", type=int, default=8, help="responses per prompt")
    parser.add_argument("--share", type=float, default=0.9, help="of the steps that a response has in common")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    parser.add_argument("--shapes", nargs="+", default=["2 x 16", "2 x 128", "4 x 256"], choices=list(SHAPES))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, object] = {}
    for name in options.shapes:
        layers, width = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = save_bert(Path(folder) / "m", size=width, layers=layers, positions=512, scale=0.05)
            described(path, pair_format=PairFormat())
            for kind, share in (("nothing shared", 0.0), ("steps shared", options.share)):
                chains = responses(options.prompts, options.samples, share, seed=0)
                found = measure(path, chains, options.batch_tokens, options.rounds, options.device)
                results[f"{name}, {kind}"] = found
    harness.record(options, {"results": results}, device=options.device)


if __name__ == "__main__":
    main()
