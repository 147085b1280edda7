# SPDX-License-Identifier: Apache-2.0
"""Time to find the steps of generated responses, beside decoding as streaming servers do, token by token.

    python tests/benchmarks/response_steps.py

Both give the text of each token of the same responses; the second decodes a window of a few tokens twice per token. The
tokenizer is a byte-level BPE trained on the spot, the text is mathematics with characters of several bytes. Prints
seconds and the ratio, and writes response_steps.json beside this file.
"""

import time
from functools import partial

import harness
import torch
from test_response_cut import TOKENIZERS

from prime_ext.config.reward_settings import StepSettings
from prime_ext.step_rm.response_cut import TokenText
from prime_ext.trainer.prime_step import ResponseSteps


def streamed_pieces(tokenizer, ids: list[int]) -> list[str]:
    """Text of each token from a window that starts at the last whole character."""
    pieces, start, done = [], 0, 0
    for end in range(1, len(ids) + 1):
        before, after = tokenizer.decode(ids[start:done]), tokenizer.decode(ids[start:end])
        if after.endswith("\ufffd"):
            pieces.append("")
            continue
        pieces.append(after[len(before) :])
        start, done = done, end
    return pieces


def main() -> None:
    options = harness.parser(__doc__, rows=32, tokens=3072).parse_args()
    tokenizer = TOKENIZERS["byte-level BPE"]()
    lines = (f"{k}. We compute √{k} ≤ 然后 {7 * k}. So it is \\boxed{{{k}}}.\n\n" for k in range(1, 2 * options.tokens))
    ids: list[int] = []
    for line in lines:
        ids += tokenizer.encode(line, add_special_tokens=False)
        if len(ids) >= options.tokens:
            break
    ids = ids[: options.tokens]
    token_BT = torch.tensor([ids] * options.rows)

    steps = ResponseSteps(StepSettings("auto", None, None), tokenizer)
    boundary_BT, all_steps = harness.timed(
        lambda: steps.boundaries(token_BT, torch.ones_like(token_BT)), time.perf_counter
    )
    seconds = {"steps of all responses": all_steps}
    sides = {"texts of tokens": TokenText(tokenizer).pieces}
    sides["texts of tokens, streamed"] = partial(streamed_pieces, tokenizer)
    for name, pieces_of in sides.items():
        (pieces, *_), seconds[name] = harness.timed(
            lambda pieces_of=pieces_of: [pieces_of(ids) for _ in range(options.rows)], time.perf_counter
        )
        assert "".join(pieces).rstrip("\ufffd") == tokenizer.decode(ids).rstrip("\ufffd")
    results = {
        "steps per response": int(boundary_BT[0].sum()) + 1,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "seconds per 1024 responses": round(1024 / options.rows * all_steps, 2),
        "streamed over ours": round(seconds["texts of tokens, streamed"] / seconds["texts of tokens"], 1),
    }
    harness.record(options, results, ("tokenizers", "transformers"))


if __name__ == "__main__":
    main()
