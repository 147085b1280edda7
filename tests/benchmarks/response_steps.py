# SPDX-License-Identifier: Apache-2.0
"""Time to find the steps of generated responses, beside decoding as streaming servers do, token by token.

    python tests/benchmarks/response_steps.py

Both give the text of each token of the same responses; the second decodes a window of a few tokens twice per token. The
tokenizer is a byte-level BPE trained on the spot, the text is mathematics with characters of several bytes. Prints
seconds and the ratio, and writes response_steps.json beside this file.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "step_rm")]

import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from test_token_text import TOKENIZERS  # noqa: E402

from prime_ext.config.reward_settings import StepSettings  # noqa: E402
from prime_ext.step_rm.response_cut import TokenText  # noqa: E402
from prime_ext.trainer.response_steps import ResponseSteps  # noqa: E402
from prime_ext.utils.files import write_json  # noqa: E402


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=3072)
    options = parser.parse_args()
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
    start = time.perf_counter()
    boundary_BT = steps.boundaries(token_BT, torch.ones_like(token_BT))
    seconds = {"steps of all responses": time.perf_counter() - start}
    for name, pieces_of in (
        ("texts of tokens", TokenText(tokenizer).pieces),
        ("texts of tokens, streamed", lambda ids: streamed_pieces(tokenizer, ids)),
    ):
        start = time.perf_counter()
        pieces = [pieces_of(ids) for _ in range(options.rows)]
        seconds[name] = time.perf_counter() - start
        assert "".join(pieces[0]).rstrip("\ufffd") == tokenizer.decode(ids).rstrip("\ufffd")
    result = {
        "rows": options.rows,
        "tokens": options.tokens,
        "steps per response": int(boundary_BT[0].sum()) + 1,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "seconds per 1024 responses": round(1024 / options.rows * seconds["steps of all responses"], 2),
        "streamed over ours": round(seconds["texts of tokens, streamed"] / seconds["texts of tokens"], 1),
        "versions": {
            "python": platform.python_version(),
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
        },
    }
    print(json.dumps(result, indent=2))
    write_json(Path(__file__).with_suffix(".json"), result)


if __name__ == "__main__":
    main()
