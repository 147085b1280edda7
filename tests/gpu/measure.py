# SPDX-License-Identifier: Apache-2.0
"""What the CUDA branch does on one device: seven measurements, each beside what was expected of it.

    python tests/gpu/measure.py [--only NAME ...] [--tiny] [--output FILE]

noise      rounding noise of the process reward while the PRM equals its reference: other packing, training against
           evaluation, padding, plain log-probabilities (logits in bf16) and chunked ones (logits in fp32)
engines    the PRM's worker on FSDP1 and FSDP2, full and LoRA, packed and padded, with and without offload: scores
           against plain transformers, memory held and at the peak beside the plan's, save and load
losses     every loss of the PRM under autocast on the device against fp32 on the CPU
chunked    chunked log-probabilities of a 152k vocabulary: error against fp64, memory, time, beside the plain way
packing    sequences of one packed row do not see each other
scorer     a step reward model of BERT-large's size: bf16 on the device against fp32 on the CPU
budget     time and memory of passes of 4,096 and 16,384 tokens, and the share of the device's peak they reach

Needs torch, transformers and verl; neither ray, vllm nor a model: weights are random, in the shapes of Qwen2.5. With
``--tiny`` the sizes are those of a test, and the device may be the CPU (``VERL_PLATFORM=cpu``). Prints a table, writes
FILE, and ends with status 1 if a condition does not hold.
"""

import argparse
import gc
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), *(str(HERE.parent / name) for name in ("support", "benchmarks", "step_rm"))]
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import stand_ins  # noqa: E402

STOOD_IN = stand_ins.install("ray", "transfer_queue")

import engines  # noqa: E402  (before torch: it chooses verl's device)
import torch  # noqa: E402
from engines import Rollouts, build_worker, nested, score  # noqa: E402
from machine import describe  # noqa: E402

from prime_ext.algorithms.prm_losses import PRM_LOSSES  # noqa: E402
from prime_ext.plan.estimate import DEVICES, UTILISATION  # noqa: E402
from prime_ext.plan.flops import Passes, flops, training_passes  # noqa: E402
from prime_ext.plan.memory import Engine, engine_memory  # noqa: E402
from prime_ext.plan.model_shape import adapter_weights, read_shape  # noqa: E402
from prime_ext.prm.worker import LABEL, OFFSET, REFERENCE_LOG_PROBS, WEIGHT, PRMLoss  # noqa: E402
from prime_ext.utils.files import write_json  # noqa: E402

CUDA = engines.get_device_name() == "cuda"
DEVICE = torch.device("cuda" if CUDA else "cpu")
MIB = 2**20
BETA = 0.05


@dataclass(frozen=True)
class Sizes:
    """Of the measurements; ``logit_scale`` stretches the logits of random weights to the range of trained ones."""

    small: dict[str, Any]
    wide: dict[str, Any]
    rows: int
    prompt: int
    response: int
    budgets: tuple[int, int]
    chunked: tuple[int, int, int]
    bert: tuple[int, int, int]
    chains: int


QWEN_05B = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
QWEN_7B_WIDE = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 2, "num_attention_heads": 28}
FULL = Sizes(
    small={**QWEN_05B, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    wide={**QWEN_7B_WIDE, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    rows=32,
    prompt=128,
    response=512,
    budgets=(4096, 16384),
    chunked=(4096, 3584, 152064),
    bert=(24, 1024, 16),
    chains=64,
)
TINY = Sizes(
    small={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 300, "tie_word_embeddings": True},
    wide={"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False},
    rows=8,
    prompt=8,
    response=24,
    budgets=(64, 256),
    chunked=(64, 32, 500),
    bert=(2, 32, 2),
    chains=3,
)


class Report:
    """Rows of the table, and the conditions that the run has to hold."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        self.failed: list[str] = []

    def condition(self, holds: bool, text: str) -> None:
        print(f"    {'holds' if holds else 'FAILS'}: {text}", flush=True)
        if not holds:
            self.failed.append(text)


# ---- models, rollouts, memory ----------------------------------------------------------------------------------------


def save_qwen(folder: Path, config: dict[str, Any], logit_scale: float) -> Path:
    """Random weights in a shape of Qwen2; the final norm is scaled, so that the highest logits are near 20."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    with torch.device(DEVICE):
        model = Qwen2ForCausalLM(Qwen2Config(**config, **special, max_position_embeddings=32768, rope_theta=1e6))
    with torch.no_grad():
        model.model.norm.weight.mul_(logit_scale)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return folder


def sampled_rollouts(path: Path, sizes: Sizes, vocabulary: int) -> Rollouts:
    """Rollouts whose responses were sampled from the model: the tokens of a policy are likely ones."""
    from transformers import AutoModelForCausalLM

    rollouts = Rollouts(sizes.rows, sizes.prompt, sizes.response, vocabulary)
    dtype = torch.bfloat16 if CUDA else torch.float32
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(DEVICE).eval()
    torch.manual_seed(1)
    ids_BT = torch.stack(rollouts.prompts).to(DEVICE)
    with torch.inference_mode():
        output_BT = model.generate(
            ids_BT, do_sample=True, top_k=0, min_new_tokens=sizes.response, max_new_tokens=sizes.response
        )
    output_BT = output_BT[:, sizes.prompt :].cpu()
    rollouts.responses = [row[: len(mask)] for row, mask in zip(output_BT, rollouts.masks, strict=True)]
    return rollouts


def free() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def memory() -> dict[str, float]:
    """MiB on the device (allocated by torch, used as the driver sees it) and pinned on the host."""
    if not CUDA:
        return {"allocated": 0.0, "used": 0.0, "pinned": 0.0}
    torch.cuda.synchronize()
    available, total = torch.cuda.mem_get_info()
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return {
        "allocated": torch.cuda.memory_allocated() / MIB,
        "used": (total - available) / MIB,
        "pinned": pinned / MIB,
    }


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, seconds, and the peak of the allocated memory in MiB."""
    if CUDA:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    result = run()
    if CUDA:
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / MIB if CUDA else 0.0
    return result, time.perf_counter() - start, peak


@contextmanager
def built(path: Path, **options: Any) -> Iterator[Any]:
    """A worker, and nothing of it left afterwards."""
    worker = build_worker(path, micro_batch_size=4, **options)
    try:
        yield worker
    finally:
        worker.engine = worker.loss_fn = None
        del worker
        free()


def packed(tokens: int) -> dict[str, Any]:
    """Options of a packed pass of at most ``tokens`` tokens."""
    return {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens, "use_remove_padding": True}


def padded(rows: int) -> dict[str, Any]:
    return {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": rows, "use_remove_padding": False}


def values(log_probs: torch.Tensor) -> torch.Tensor:
    return log_probs.values().detach().float().cpu()


# ---- the measurements ------------------------------------------------------------------------------------------------


def noise_of(q: torch.Tensor, lengths: list[int]) -> dict[str, float]:
    """Spread of q per token and of its sum over a response, scaled to 1,000 tokens."""
    sums = torch.stack([row.sum() * math.sqrt(1000 / len(row)) for row in q.split(lengths)])
    return {
        "std_per_token": float(q.std()),
        "mean_per_token": float(q.mean()),
        "max_per_token": float(q.abs().max()),
        "std_of_sum_1000": float(sums.square().mean().sqrt()),
        "beta_times_that": BETA * float(sums.square().mean().sqrt()),
    }


def add_noise(
    rows: dict[str, Any], name: str, lengths: list[int], label: str, scores: torch.Tensor, base: torch.Tensor
) -> None:
    rows[label] = noise_of(values(scores) - values(base), lengths)
    print(f"    {name}, {label}: {rows[label]['std_per_token']:.5f} a token", flush=True)


def measure_noise(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    small, large = sizes.budgets
    strategy = "fsdp" if CUDA else "fsdp2"
    found: dict[str, Any] = {}
    for name, config, logit_scale in (("0.5B", sizes.small, 8.0), ("7B-width", sizes.wide, 4.0)):
        path = save_qwen(folder / name, config, logit_scale)
        rollouts = sampled_rollouts(path, sizes, config["vocab_size"])
        free()
        lengths = [len(response) for response in rollouts.responses]
        found[name] = rows = {}

        add = partial(add_noise, rows, name, lengths)
        with built(path, role="reference", remove_padding=True, strategy=strategy) as reference:
            base = score(reference, rollouts, **packed(small))
            rows["log_prob"] = {"mean": float(values(base).mean()), "rows": len(lengths)}
            with engines.fused_by(reference, "chunked"):
                chunked_base = score(reference, rollouts, **packed(small))
        with built(path, remove_padding=True, learning_rate=0.0, strategy=strategy) as prm:
            same = score(prm, rollouts, **packed(small))
            add("same packing", same, base)
            report.condition(
                torch.equal(values(same), values(base)), f"{name}: a fresh PRM equals its reference with equal packing"
            )
            add("other packing", score(prm, rollouts, **packed(large)), base)
            add("padded", score(prm, rollouts, **padded(4)), base)
            data = rollouts.prm_data(base, sizes.rows, **packed(small))
            add("training pass, checkpointing", in_order(prm.update_and_score(data)), base)
            with engines.fused_by(prm, "chunked"):
                add("chunked, same packing", score(prm, rollouts, **packed(small)), chunked_base)
                add("chunked, other packing", score(prm, rollouts, **packed(large)), chunked_base)
        with built(path, remove_padding=True, learning_rate=0.0, checkpointing=False) as prm:
            data = rollouts.prm_data(base, sizes.rows, **packed(small))
            add("training pass, activations kept", in_order(prm.update_and_score(data)), base)
        with built(path, role="reference", remove_padding=True, compute="fp32") as exact:
            add("bf16 against fp32", base, score(exact, rollouts, **packed(small)))
    return found


def in_order(output: Any) -> torch.Tensor:
    return output[engines.PRM_LOG_PROBS]


def plan_of(path: Path, tokens: int, lora: bool, offload: bool) -> Any:
    shape = read_shape("prm.model.path", str(path))
    adapter = adapter_weights("prm.model", shape, 16, "all-linear") if lora else 0
    compute = 2 if CUDA else 4
    engine = Engine(
        "PRM", shape, adapter if lora else shape.weights, adapter, 4, compute, 1, tokens, True, None, offload, offload,
        False,
    )  # fmt: skip
    return engine_memory(engine)


def measure_engines(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    path = save_qwen(folder / "engines", sizes.small, 8.0)
    rollouts = sampled_rollouts(path, sizes, sizes.small["vocab_size"])
    tokens = sizes.budgets[0]
    exact = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(DEVICE).eval()
    plain = []
    with torch.inference_mode():
        for prompt, response in zip(rollouts.prompts, rollouts.responses, strict=True):
            logits_TV = exact(torch.cat([prompt, response])[None].to(DEVICE)).logits[0, len(prompt) - 1 : -1]
            plain.append(logits_TV.log_softmax(-1).gather(-1, response[:, None].to(DEVICE))[:, 0].cpu())
            del logits_TV
    expected = torch.cat(plain)
    del exact
    free()
    strategies = ("fsdp", "fsdp2") if CUDA else ("fsdp2",)
    found: dict[str, Any] = {}
    for strategy in strategies:
        for lora in (False, True):
            for offload in (False, True):
                label = f"{strategy}, {'LoRA' if lora else 'full'}{', offload' if offload else ''}"
                before = memory()
                options = {"strategy": strategy, "lora_rank": 16 if lora else 0, "offload": offload}
                with built(path, remove_padding=True, learning_rate=1e-4, **options) as prm:
                    row: dict[str, Any] = {}
                    scores, row["score_seconds"], row["score_peak"] = timed(
                        lambda prm=prm: score(prm, rollouts, **packed(tokens))
                    )
                    row["error_packed"] = float((values(scores) - expected).abs().mean())
                    row["error_padded"] = float((values(score(prm, rollouts, **padded(4))) - expected).abs().mean())

                    def update(prm: Any = prm, scores: torch.Tensor = scores) -> Any:
                        return prm.update_and_score(rollouts.prm_data(scores, sizes.rows, **packed(tokens)))

                    _, row["first_update_seconds"], _ = timed(update)
                    _, row["update_seconds"], row["update_peak"] = timed(update)
                    after = memory()
                    row["idle"] = after["allocated"] - before["allocated"]
                    row["pinned"] = after["pinned"] - before["pinned"]
                    trained = score(prm, rollouts, **packed(tokens))
                    saved = folder / "saved"
                    _, row["save_seconds"], _ = timed(lambda prm=prm, saved=saved: prm.save_checkpoint(str(saved)))
                    update()
                    moved = score(prm, rollouts, **packed(tokens))
                    _, row["load_seconds"], _ = timed(lambda prm=prm, saved=saved: prm.load_checkpoint(str(saved)))
                    restored = score(prm, rollouts, **packed(tokens))
                    row["idle_after_load"] = memory()["allocated"] - before["allocated"]
                    plan = plan_of(path, tokens, lora, offload)
                    row["planned_peak"], row["planned_idle"] = plan.working / MIB, plan.idle / MIB
                    row["planned_host"] = plan.host / MIB
                after = memory()
                row["left_behind"] = after["allocated"] - before["allocated"]
                found[label] = row
                print(f"    {label}: { ({key: round(value, 4) for key, value in row.items()}) }", flush=True)
                bound = 0.05 if CUDA else 1e-4
                report.condition(row["error_packed"] < bound, f"{label}: packed scores agree with plain fp32")
                report.condition(row["error_padded"] < bound, f"{label}: padded scores agree with plain fp32")
                report.condition(not torch.equal(values(moved), values(trained)), f"{label}: an update moves the PRM")
                report.condition(
                    torch.equal(values(restored), values(trained)), f"{label}: a restored PRM scores the same"
                )
                if CUDA and offload:
                    largest = 0.02 * max(row["update_peak"], 1)
                    report.condition(row["idle"] < largest, f"{label}: nearly nothing stays on the device")
    return found


def measure_losses(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    rows, found = sizes.rows, {}
    rollouts = Rollouts(rows, sizes.prompt, sizes.response, 1000)
    generator = torch.Generator().manual_seed(2)
    label_B = torch.arange(rows).remainder(2).float()
    group_B = torch.arange(rows) // 4
    valid_B = torch.ones(rows, dtype=torch.bool)
    score_B = torch.randn(rows, generator=generator)
    lengths = [len(mask) for mask in rollouts.masks]
    reference = [-torch.rand(length, generator=generator) * 3 for length in lengths]
    moved = [row + 0.1 * torch.randn(len(row), generator=generator) for row in reference]
    prompts = [torch.zeros(sizes.prompt) for _ in lengths]
    for name, entry in PRM_LOSSES.items():
        prepared = entry.prepare(label_B, group_B, valid_B, score_B)
        results = []
        for device in (torch.device("cpu"), DEVICE):
            # As an engine returns them: of the whole sequence, moved one to the left.
            parts = [torch.cat([p[1:], row, p[:1]]) for p, row in zip(prompts, moved, strict=True)]
            flat_N = torch.cat(parts).to(device).requires_grad_()
            log_probs = torch.nested.nested_tensor_from_jagged(flat_N, lengths=None, offsets=offsets(parts, device))
            data = rollouts.data(
                {
                    REFERENCE_LOG_PROBS: nested(reference),
                    LABEL: prepared.target_B,
                    WEIGHT: prepared.weight_B / rows,
                    OFFSET: prepared.offset_B,
                },
                dp_size=1,
            ).to(device)
            half = device.type == "cuda"
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss, _ = PRMLoss(name, 10.0 if name == "ipvrm" else 0.05)({"log_probs": log_probs}, data)
            loss.backward()
            results.append((loss.detach().cpu(), flat_N.grad.cpu()))
        (loss, grad), (loss_there, grad_there) = results
        row = {
            "loss": float(loss),
            "loss_error": float((loss_there - loss).abs() / loss.abs().clamp(min=1e-6)),
            "gradient_error": float((grad_there - grad).norm() / grad.norm().clamp(min=1e-12)),
        }
        found[name] = row
        report.condition(
            row["loss_error"] < 1e-5 and row["gradient_error"] < 1e-4,
            f"{name}: loss and gradient under autocast equal fp32 on the CPU ({row['gradient_error']:.1e})",
        )
    return found


def offsets(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *(len(part) for part in parts)]).cumsum(0).to(device)


def measure_chunked(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    from plain_log_probs import plain_log_probs

    from prime_ext.algorithms.chunked_log_probs import chunked_log_probs

    count, width, vocabulary = sizes.chunked
    generator = torch.Generator(DEVICE).manual_seed(0)
    dtype = torch.bfloat16 if CUDA else torch.float32
    # Logits with a spread of 5: the highest of 152k is above 20, as in a trained model.
    hidden_NH = torch.randn(count, width, generator=generator, device=DEVICE).to(dtype)
    weight_VH = (torch.randn(vocabulary, width, generator=generator, device=DEVICE) * 5 / math.sqrt(width)).to(dtype)
    target_N = torch.randint(vocabulary, (count,), generator=generator, device=DEVICE)
    part = min(count, 512)
    exact_N = plain_log_probs(hidden_NH[:part].double(), weight_VH.double(), target_N[:part]).float()
    free()
    found: dict[str, Any] = {}
    for name, function in (("plain", plain_log_probs), ("chunked", chunked_log_probs)):

        def run(function: Any = function) -> torch.Tensor:
            hidden, weight = hidden_NH.detach().requires_grad_(), weight_VH.detach().requires_grad_()
            log_prob_N = function(hidden, weight, target_N)
            log_prob_N.sum().backward()
            return log_prob_N.detach()

        held = memory()["allocated"]
        log_prob_N, _, peak = timed(run)
        _, seconds, _ = timed(run)
        error = float((log_prob_N[:part] - exact_N).square().mean().sqrt())
        found[name] = {"seconds": seconds, "peak_mib": peak - held, "error_against_fp64": error}
        del log_prob_N
        free()
        print(f"    {name}: {found[name]}", flush=True)
    same = abs(found["plain"]["error_against_fp64"] - found["chunked"]["error_against_fp64"])
    report.condition(same < 0.01, "chunked is as exact as plain")
    return found


def measure_packing(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    path = save_qwen(folder / "packing", sizes.small, 8.0)
    vocabulary = sizes.small["vocab_size"]
    rollouts = Rollouts(8, sizes.prompt, sizes.response, vocabulary)
    found: dict[str, Any] = {}
    with built(path, role="reference", remove_padding=True, compute="fp32") as worker:
        everything = packed(8 * (sizes.prompt + sizes.response))
        first = score(worker, rollouts, **everything).unbind()
        found["packed_against_padded"] = max(
            float((a - b).abs().max())
            for a, b in zip(first, score(worker, rollouts, **padded(1)).unbind(), strict=True)
        )
        rollouts.responses[3] = torch.flip(rollouts.responses[3], [0])
        second = score(worker, rollouts, **everything).unbind()
    changes = [float((a - b).abs().max()) for a, b in zip(first, second, strict=True)]
    found["change_of_the_changed_row"] = changes.pop(3)
    found["change_of_other_rows"] = max(changes)
    print(f"    {found}", flush=True)
    report.condition(found["change_of_other_rows"] == 0.0, "another content of one row changes no other row")
    report.condition(found["packed_against_padded"] < 1e-3, "packed equals one row at a time")
    return found


def measure_scorer(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    from tiny_step_rm import save_bert

    from prime_ext.step_rm.description import FILE, Description, PairFormat
    from prime_ext.step_rm.labels import LABELS
    from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
    from prime_ext.step_rm.scorers.protocol import Chain

    layers, width, heads = sizes.bert
    path = save_bert(folder / "bert", size=width, layers=layers, positions=512, scale=0.05)
    (path / FILE).write_text(Description(PairFormat(), 1.0, LABELS).to_json())
    steps = [f"Step {number}: we add {number} and {number * number}." for number in range(1, 9)]
    chains = [Chain((f"Step 0: response {number}.", *steps[: number % 8])) for number in range(sizes.chains)]
    n_steps = sum(len(chain.steps) for chain in chains)
    there = LocalScorer(StepClassifier(path, device=DEVICE.type))
    there.score_now(chains[:1])
    there._cache.clear()
    scores, seconds, peak = timed(lambda: there.score_now(chains))
    few = chains[:8]
    exact, cpu_seconds, _ = timed(
        lambda: LocalScorer(StepClassifier(path, device="cpu", dtype="float32")).score_now(few)
    )
    error = max(
        abs(a - b)
        for got, wanted in zip(scores, exact, strict=False)
        for p, q in zip(got.probabilities, wanted.probabilities, strict=True)
        for a, b in zip(p, q, strict=True)
    )
    few_steps = sum(len(chain.steps) for chain in few)
    found = {
        "steps_per_second": n_steps / seconds,
        "cpu_steps_per_second": few_steps / cpu_seconds,
        "cpu_threads": torch.get_num_threads(),
        "largest_difference": error,
        "peak_mib": peak,
        "steps": n_steps,
    }
    print(f"    {found}", flush=True)
    report.condition(error < 0.05, "scores in bf16 agree with fp32 within 0.05")
    return found


def measure_budget(sizes: Sizes, folder: Path, report: Report) -> dict[str, Any]:
    path = save_qwen(folder / "budget", sizes.small, 8.0)
    shape = read_shape("prm.model.path", str(path))
    rollouts = Rollouts(4 * sizes.rows, sizes.prompt, sizes.response, sizes.small["vocab_size"])
    length = rollouts.tokens / rollouts.rows
    attention = sizes.small["num_hidden_layers"] * sizes.small["hidden_size"]
    products = shape.weights if sizes.small["tie_word_embeddings"] else shape.weights - shape.root_weights // 2
    peak = next((flop for name, flop in DEVICES.items() if CUDA and name in torch.cuda.get_device_name()), None)
    found: dict[str, Any] = {"tokens": rollouts.tokens}
    with built(path, remove_padding=True) as prm:
        base = score(prm, rollouts, **packed(sizes.budgets[0]))
        for fused in (None, "chunked"):
            for tokens in sizes.budgets:

                def update(tokens: int = tokens) -> Any:
                    return prm.update_and_score(rollouts.prm_data(base, rollouts.rows, **packed(tokens)))

                def forward(tokens: int = tokens) -> Any:
                    return score(prm, rollouts, **packed(tokens))

                with engines.fused_by(prm, fused) if fused else nothing():
                    for name, run, passes in (
                        ("score", forward, Passes()),
                        ("update", update, training_passes(recompute=True)),
                    ):
                        run()
                        times = []
                        for _ in range(3):
                            _, seconds, most = timed(run)
                            times.append(seconds)
                        seconds = sorted(times)[1]
                        work = flops(passes, products, attention, rollouts.tokens, length)
                        found[f"{name}, {tokens} tokens, {fused or 'plain'}"] = row = {
                            "seconds": seconds,
                            "tokens_per_second": rollouts.tokens / seconds,
                            "planned_seconds": work / (UTILISATION * peak) if peak else None,
                            "peak_mib": most,
                            "tflops": work / seconds / 1e12,
                            "share_of_peak": work / seconds / peak if peak else None,
                        }
                        print(f"    {name}, {tokens} tokens, {fused or 'plain'}: {row}", flush=True)
    return found


@contextmanager
def nothing() -> Iterator[None]:
    yield


def table(parts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What was measured, beside what ``python -m prime_ext.doctor --plan`` expects: memory in MiB, seconds."""
    rows = []
    for label, row in parts.get("engines", {}).items():
        if isinstance(row, dict):
            rows.append((f"{label}: peak of an update", f"{row['update_peak']:.0f}", f"{row['planned_peak']:.0f}"))
            rows.append((f"{label}: held between passes", f"{row['idle']:.0f}", f"{row['planned_idle']:.0f}"))
            rows.append((f"{label}: pinned on the host", f"{row['pinned']:.0f}", f"{row['planned_host']:.0f}"))
    for label, row in parts.get("budget", {}).items():
        if isinstance(row, dict):
            planned = "" if row["planned_seconds"] is None else f"{row['planned_seconds']:.3f}"
            rows.append((f"{label}: seconds", f"{row['seconds']:.3f}", planned))
            rows.append((f"{label}: TFLOP/s", f"{row['tflops']:.1f}", ""))
    for name, model in parts.get("noise", {}).items():
        for label, row in model.items() if isinstance(model, dict) else ():
            if "std_per_token" in row:
                rows.append((f"{name}, {label}: std of q per token", f"{row['std_per_token']:.5f}", ""))
    return rows


MEASUREMENTS: dict[str, Callable[[Sizes, Path, Report], dict[str, Any]]] = {
    "losses": measure_losses,
    "chunked": measure_chunked,
    "packing": measure_packing,
    "noise": measure_noise,
    "engines": measure_engines,
    "budget": measure_budget,
    "scorer": measure_scorer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--tiny", action="store_true", help="sizes of a test")
    parser.add_argument("--output", type=Path, help="default: results/DEVICE.json beside this file")
    arguments = parser.parse_args()
    if not CUDA and not arguments.tiny:
        raise SystemExit("no CUDA device; VERL_PLATFORM=cpu and --tiny try the measurements on the CPU")
    sizes = TINY if arguments.tiny else FULL
    report = Report()
    output = arguments.output or HERE / "results" / f"{torch.cuda.get_device_name().replace(' ', '_')}.json"
    for name in arguments.only:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                report.parts[name] = MEASUREMENTS[name](sizes, Path(folder), report)
            except Exception as error:
                # The others are still worth having.
                import traceback

                traceback.print_exc()
                report.condition(False, f"{name} ran to its end ({type(error).__name__}: {error})")
        free()
        report.parts.setdefault(name, {})["seconds_of_this_part"] = time.perf_counter() - start
        output.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": describe(DEVICE.type), "stand_ins": STOOD_IN, "failed": report.failed, **report.parts}
        write_json(output, record)
    for what, measured, planned in (("", "measured", "planned"), *table(report.parts)):
        print(f"{what:60} {measured:>12} {planned:>12}")
    print(f"{len(report.failed)} conditions failed; written to {output}", flush=True)
    sys.exit(bool(report.failed))


if __name__ == "__main__":
    main()
