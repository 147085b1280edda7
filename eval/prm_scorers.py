# SPDX-License-Identifier: Apache-2.0
"""Step scores by implicit PRMs, token classifiers and step reward models, with transformers.

Results are kept raw (sums of log-ratios, probabilities), so that every score made of them is free
afterwards.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from prime_ext.algorithms.chunked_log_probs import compute_log_probs_and_entropy
from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.step_rm.description import Input
from prime_ext.step_rm.scorers.local import StepClassifier, length_buckets, pad_inputs
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.run_store import LineFile, Row, RunError
from prime_ext.utils.text_tokens import TextEncoder, TokenizedSteps, wrap_prompt

from .prm_data import LabeledResponse

SCORE_KINDS = ("prefix", "step")
LAYOUTS = ("chat", "plain")
OVERLONG = "overlong"


class LogProbModel:
    """A causal language model that computes log-probabilities, a chunk of logits at a time.

    Models whose logits are not simply hidden states times the output embedding (a bias, a scale, a
    soft cap) are recognized when they are loaded. Their logits are computed in full, and
    ``chunked`` is False.
    """

    def __init__(
        self,
        path: str,
        device: torch.device,
        dtype: torch.dtype,
        chunk: int = 256,
        trust_remote_code: bool = False,
    ):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, trust_remote_code=trust_remote_code
        )
        self.model = model.eval().requires_grad_(False).to(device)
        self.device = device
        self.chunk = chunk
        self.chunked = self._head_is_plain()

    @torch.no_grad()
    def _head_is_plain(self) -> bool:
        id_1T = torch.arange(1, 9, device=self.device)[None] % self.model.config.vocab_size
        head = self.model.get_output_embeddings()
        hidden_1TH = self.model.base_model(input_ids=id_1T).last_hidden_state
        logits_1TV = self.model(input_ids=id_1T).logits
        return bool(torch.allclose(hidden_1TH @ head.weight.T, logits_1TV, atol=1e-3, rtol=1e-3))

    @torch.no_grad()
    def log_probs(self, batch: Sequence[TokenizedSteps], pad: int) -> list[torch.Tensor]:
        """Return log-probabilities of the response tokens of each row, float32 on the host."""
        id_BT, mask_BT = (
            tensor.to(self.device)
            for tensor in pad_inputs([torch.tensor(t.ids) for t in batch], pad)
        )
        spans = [(row, slice(t.n_prompt - 1, len(t.ids) - 1)) for row, t in enumerate(batch)]
        target_N = torch.cat([id_BT[row, span.start + 1 : span.stop + 1] for row, span in spans])
        if self.chunked:
            hidden_BTH = self.model.base_model(
                input_ids=id_BT, attention_mask=mask_BT
            ).last_hidden_state
            hidden_NH = torch.cat([hidden_BTH[row, span] for row, span in spans])
            head_VH = self.model.get_output_embeddings().weight
            log_prob_N, _ = compute_log_probs_and_entropy(
                hidden_NH, head_VH, target_N, chunk=self.chunk, with_entropy=False
            )
        else:
            logits_BTV = self.model(input_ids=id_BT, attention_mask=mask_BT).logits
            logits_NV = torch.cat([logits_BTV[row, span] for row, span in spans]).float()
            log_prob_N = logits_NV.log_softmax(-1).gather(-1, target_N[:, None])[:, 0]
        return list(log_prob_N.float().cpu().split([span.stop - span.start for _, span in spans]))


class ImplicitScorer:
    """Scorer that sums log-ratios to a reference, or else log-probabilities, over each step."""

    def __init__(
        self,
        model: LogProbModel,
        reference: LogProbModel | None,
        encoder: TextEncoder,
        max_length: int,
    ):
        self.model = model
        self.reference = reference
        self.encoder = encoder
        self.max_length = max_length
        models = [model] if reference is None else [model, reference]
        sizes = [loaded.model.config.vocab_size for loaded in models]
        if len(set(sizes)) > 1:
            raise RunError(
                f"the reference has {sizes[1]} tokens, the model {sizes[0]}; a reference must have"
                " the model's vocabulary"
            )

    def tokens(self, response: LabeledResponse) -> TokenizedSteps:
        prompt = self.encoder.prompt(response.prompt)
        ids, ends = self.encoder.response(response.text, response.char_ends)
        return TokenizedSteps(
            [*prompt, *ids], len(prompt), tuple(len(prompt) + end for end in ends)
        )

    def score(self, batch: Sequence[TokenizedSteps]) -> list[Row]:
        """Return ``log_prob`` and ``log_ratio`` (with a reference) summed over each step."""
        pad = self.encoder.tokenizer.pad_token_id or 0
        log_probs = self.model.log_probs(batch, pad)
        reference_log_probs = (
            None if self.reference is None else self.reference.log_probs(batch, pad)
        )
        results = []
        for row, tokens in enumerate(batch):
            # Running sums in double precision: differences of long prefixes must not lose digits.
            ends = [end - tokens.n_prompt for end in tokens.ends]
            values = {"log_prob": log_probs[row]}
            if reference_log_probs is not None:
                values["log_ratio"] = log_ratio(
                    log_probs[row], reference_log_probs[row], torch.ones_like(log_probs[row])
                )
            result: Row = {}
            for name, value_T in values.items():
                sum_S = value_T.double().cumsum(0)[ends]
                result[name] = torch.diff(sum_S, prepend=sum_S.new_zeros(1)).tolist()
            results.append(result)
        return results


class ClassifierScorer:
    """Scorer with a token classifier: the positive class's probability at each step's end."""

    def __init__(self, model: TokenClassifier):
        self.model = model
        self.max_length = model.reader.max_length

    def tokens(self, response: LabeledResponse) -> TokenizedSteps:
        return self.model.reader.tokens(response.prompt, response.steps)

    def score(self, batch: Sequence[TokenizedSteps]) -> list[Row]:
        """Return ``probability`` of each step."""
        return [{"probability": values} for values in self.model.score_inputs(batch)]


class StepRMScorer:
    """Scorer with a step reward model of prime_ext: the probability of the label 1 of each step.

    The model reads one input for each step, so a response is never too long; the ids of a response
    are those of its inputs, one after the other.
    """

    max_length = math.inf

    def __init__(self, model: StepClassifier, batch_tokens: int):
        self.model = model
        self.batch_tokens = batch_tokens

    def tokens(self, response: LabeledResponse) -> TokenizedSteps:
        question = "\n".join(
            message["content"]
            for message in wrap_prompt(response.prompt)
            if message["role"] == "user"
        )
        [inputs] = self.model.encoder.encode_chains([(question, response.steps)])
        ends = accumulate(map(len, inputs))
        ids = [token for step_input in inputs for token in step_input.ids]
        return TokenizedSteps(ids, 0, tuple(end - 1 for end in ends))

    def score(self, batch: Sequence[TokenizedSteps]) -> list[Row]:
        """Return ``probability`` of each step."""
        read = [
            [Input(tuple(row.ids[a:b])) for a, b in pairwise([0, *(end + 1 for end in row.ends)])]
            for row in batch
        ]
        known: dict[Input, float] = {}
        distinct = list({step_input for inputs in read for step_input in inputs})
        for bucket in length_buckets(distinct, self.batch_tokens):
            for step_input, (value,) in zip(bucket, self.model.score_inputs(bucket), strict=True):
                known[step_input] = value
        return [{"probability": [known[step_input] for step_input in inputs]} for inputs in read]


def score_by_labels(
    errors: Sequence[int | None], responses: Sequence[LabeledResponse]
) -> list[Row]:
    """Return results of responses by their first errors (-1 for none): 1 before, 0 from there on.

    A response without a label has the result of one that is too long.
    """
    return [
        {OVERLONG: 0}
        if error is None
        else {"probability": [float(not 0 <= error <= n) for n in range(len(response.steps))]}
        for error, response in zip(errors, responses, strict=True)
    ]


def score_steps(
    result: Row, kind: str, coefficient: float | None, with_reference: bool = True
) -> list[float] | None:
    """Return scores of the steps from a scorer's result, None if it was too long.

    Those of classifiers are their probabilities, those of an implicit PRM, by ``kind``:

    * ``prefix``: coefficient * sum of q up to the end of the step (ImplicitPRM on ProcessBench);
    * ``step``: coefficient * sum of q in the step.
    """
    if OVERLONG in result:
        return None
    if "probability" in result:
        return list(result["probability"])
    sum_S = np.array(result["log_ratio" if with_reference else "log_prob"])
    scale = 1.0 if coefficient is None else coefficient
    return (scale * (sum_S.cumsum() if kind == "prefix" else sum_S)).tolist()


def read_model_identity(path: str | None) -> Any:
    """Name a model; a local one also by size and time of its weights, to notice retraining."""
    if path is None or not Path(path).is_dir():
        return path
    files = sorted(p for p in Path(path).iterdir() if p.suffix in (".safetensors", ".bin"))
    return [
        str(Path(path).resolve()),
        [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files],
    ]


def _key(row: TokenizedSteps) -> str:
    return hashlib.sha256(json.dumps([row.ids, row.n_prompt, row.ends]).encode()).hexdigest()[:24]


def score_all(
    scorer: ImplicitScorer | ClassifierScorer | StepRMScorer,
    rows: Sequence[TokenizedSteps],
    path: Path,
    batch_tokens: int,
) -> list[Row]:
    """Return results of all rows, in order; compute missing ones and keep them in the file.

    Long ones come first. A response longer than the scorer's limit has the result
    ``{"overlong": its tokens}``. A batch has at most ``batch_tokens`` padded tokens, and at least
    one response.
    """
    keys = list(map(_key, rows))
    lines = LineFile(path, itemgetter("key"), ("key", "result"))
    overlong = {
        key: {OVERLONG: len(row)}
        for key, row in zip(keys, rows, strict=True)
        if len(row) > scorer.max_length
    }
    missing = {
        key: row
        for key, row in zip(keys, rows, strict=True)
        if key not in lines.rows and key not in overlong
    }
    total = len(set(keys))
    with lines, tqdm(total=total, initial=total - len(missing), desc="scoring") as progress:
        for batch in length_buckets(list(missing.values()), batch_tokens):
            for row, result in zip(batch, scorer.score(batch), strict=True):
                lines.append({"key": _key(row), "result": result})
            progress.update(len(batch))
    return [lines.rows[key]["result"] if key in lines.rows else overlong[key] for key in keys]
