# SPDX-License-Identifier: Apache-2.0
"""Measurements of the CUDA branch on one device, next to what the plan expects.

    python tests/gpu/measure.py [--only NAME ...] [--tiny] [--output FILE]

engines    the PRM's worker on FSDP1 and FSDP2, full and LoRA, packed and padded, with and without
           offload: scores against plain transformers, memory held and at the peak next to the
           plan's, save and load
noise      what of q = log pi_prm - log pi_ref is rounding while both are the same weights, by
tokens of a pass budget     time and memory of passes of 4,096 and 16,384 tokens, plain and with
chunked log-probabilities

Needs torch, transformers, verl and hydra; neither ray, vllm nor a model: weights are random, in the
shapes of Qwen2.5. With ``--tiny`` the sizes are those of a test, and the device may be the CPU
(``VERL_PLATFORM=cpu``). Prints a table, writes FILE, and ends with status 1 if a condition does not
hold.
"""

import argparse
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(HERE.parent / "support")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import stand_ins  # noqa: E402

STOOD_IN = stand_ins.install("ray", "transfer_queue")

import engines  # noqa: E402  (before torch: it chooses verl's device)
import torch  # noqa: E402
from engines import Rollouts, build_worker, configure, score  # noqa: E402
from machine import describe  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from prime_ext.plan.memory import Engine, adapter_weights, engine_memory, read_shape  # noqa: E402
from prime_ext.utils.files import write_json  # noqa: E402
from prime_ext.verl_adapter.worker_engines import _ENGINES  # noqa: E402

CUDA = engines.get_device_name() == "cuda"
DEVICE = torch.device("cuda" if CUDA else "cpu")
MIB = 2**20
LORA_RANK = 16
# Stretches the logits of random weights to the range of trained ones: the highest are near 20.
LOGIT_SCALE = 8.0
# Memory that a worker holds between passes.
IDLE = ("idle", "idle_after_save", "idle_after_load")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model, of its rollouts, and the tokens of a small and a large pass."""

    model: dict[str, Any]
    rows: int
    prompt: int
    response: int
    budgets: tuple[int, int]


QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
}
QWEN |= {"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 300, "tie_word_embeddings": True}
FULL = Sizes(QWEN, rows=32, prompt=128, response=512, budgets=(4096, 16384))
TINY = Sizes(SMALL, rows=8, prompt=8, response=24, budgets=(64, 256))


FAILED: list[str] = []


def condition(holds: bool, text: str) -> None:
    print(f"    {'holds' if holds else 'FAILS'}: {text}", flush=True)
    if not holds:
        FAILED.append(text)


def save_qwen(folder: Path, config: dict[str, Any]) -> Path:
    """Save random weights in a shape of Qwen2, with a tokenizer."""
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    with torch.device(DEVICE):
        model = Qwen2ForCausalLM(
            Qwen2Config(**config, **special, max_position_embeddings=32768, rope_theta=1e6)
        )
    with torch.no_grad():
        model.model.norm.weight.mul_(LOGIT_SCALE)
    model.to(torch.bfloat16).save_pretrained(folder)
    engines.save_tokenizer(folder)
    return folder


def sample_rollouts(path: Path, sizes: Sizes) -> Rollouts:
    """Sample responses of rollouts from the model: the tokens of a policy are likely ones."""
    rollouts = Rollouts(sizes.rows, sizes.prompt, sizes.response, sizes.model["vocab_size"])
    dtype = torch.bfloat16 if CUDA else torch.float32
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(DEVICE).eval()
    torch.manual_seed(1)
    ids_BT = torch.stack(rollouts.prompts).to(DEVICE)
    lengths = {"min_new_tokens": sizes.response, "max_new_tokens": sizes.response}
    with torch.inference_mode():
        output_BT = model.generate(ids_BT, do_sample=True, top_k=0, **lengths)[
            :, sizes.prompt :
        ].cpu()
    rollouts.responses = [
        row[: len(mask)] for row, mask in zip(output_BT, rollouts.masks, strict=True)
    ]
    return rollouts


def plain_scores(path: Path, rollouts: Rollouts) -> torch.Tensor:
    """Return float32 log-probabilities of response tokens by transformers, response by response."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(DEVICE).eval()
    log_probs = []
    with torch.inference_mode():
        for prompt, response in zip(rollouts.prompts, rollouts.responses, strict=True):
            logits_TV = model(torch.cat([prompt, response])[None].to(DEVICE)).logits[
                0, len(prompt) - 1 : -1
            ]
            log_probs.append(
                logits_TV.log_softmax(-1).gather(-1, response[:, None].to(DEVICE))[:, 0].cpu()
            )
    return torch.cat(log_probs)


def free() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def memory() -> tuple[float, float]:
    """Return the MiB that torch has allocated on the device, and pinned on the host."""
    if not CUDA:
        return 0.0, 0.0
    torch.cuda.synchronize()
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return torch.cuda.memory_allocated() / MIB, pinned / MIB


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, the seconds, and the peak of the allocated memory in MiB."""
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
def built(path: Path, **of_prm: Any) -> Iterator[Any]:
    """Yield a worker and free it afterwards; ``of_prm`` are settings below the section ``prm``."""
    model = {"use_remove_padding": True, "enable_gradient_checkpointing": True}
    model["override_config.attn_implementation"] = "sdpa"
    given = {**{f"model.{name}": value for name, value in model.items()}, **of_prm}
    worker = build_worker(configure(path, {f"prm.{name}": value for name, value in given.items()}))
    try:
        yield worker
    finally:
        worker.engine = worker.loss_fn = None
        # Where the engines of a process find each other.
        _ENGINES.clear()
        del worker
        free()


def packed(tokens: int) -> dict[str, Any]:
    """Return options of a packed pass of at most ``tokens`` tokens."""
    return {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens, "use_remove_padding": True}


def padded(rows: int) -> dict[str, Any]:
    return {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": rows, "use_remove_padding": False}


def values(log_probs: torch.Tensor) -> torch.Tensor:
    return log_probs.values().detach().float().cpu()


def plan_engine(path: Path, tokens: int, lora: bool = False, offload: bool = False) -> Engine:
    """Return the worker's engine as the plan sees it."""
    shape = read_shape("prm.model.path", str(path))
    adapter = adapter_weights(str(path), LORA_RANK, "all-linear") if lora else 0
    offloads = {"param_offload": offload, "optimizer_offload": offload}
    return Engine(
        shape,
        adapter or shape.weights,
        adapter,
        4,
        2 if CUDA else 4,
        1,
        tokens,
        recompute=True,
        **offloads,
    )


def measure_engines(sizes: Sizes, folder: Path, found: dict[str, Any]) -> None:
    path = save_qwen(folder / "engines", sizes.model)
    rollouts = sample_rollouts(path, sizes)
    expected = plain_scores(path, rollouts)
    free()
    for strategy, lora, offload in product(
        ("fsdp", "fsdp2") if CUDA else ("fsdp2",), (False, True), (False, True)
    ):
        label = f"{strategy}, {'LoRA' if lora else 'full'}{', offload' if offload else ''}"
        options = {"engine.strategy": strategy, "model.lora_rank": LORA_RANK if lora else 0}
        options |= {"engine.param_offload": offload, "engine.optimizer_offload": offload}
        plan = engine_memory(plan_engine(path, sizes.budgets[0], lora, offload))
        row = {"planned_peak": plan["working"] / MIB, "planned_idle": plan["idle"] / MIB}
        allocated, pinned = memory()
        with built(path, **options, **{"optim.lr": 1e-4}) as prm:
            row |= measure_engine(prm, rollouts, expected, sizes, folder / "saved", label)
            row |= {name: row[name] - allocated for name in IDLE}
            row["pinned"] -= pinned
        row["left_behind"] = memory()[0] - allocated
        found[label] = row
        print(
            f"    {label}: { ({key: round(value, 4) for key, value in row.items()}) }", flush=True
        )
        if CUDA and offload:
            few = 0.02 * max(row["update_peak"], 1)
            for name in IDLE:
                condition(row[name] < few, f"{label}: nearly nothing stays on the device ({name})")


def measure_engine(
    prm: Any, rollouts: Rollouts, expected: torch.Tensor, sizes: Sizes, saved: Path, label: str
) -> dict[str, float]:
    """Measure scores, updates, and a checkpoint of one worker; memory as it is afterwards."""
    options = packed(sizes.budgets[0])
    row: dict[str, float] = {}
    scores, row["score_seconds"], row["score_peak"] = timed(lambda: score(prm, rollouts, **options))
    row["error_packed"] = float((values(scores) - expected).abs().mean())
    row["error_padded"] = float((values(score(prm, rollouts, **padded(4))) - expected).abs().mean())

    def update() -> Any:
        return prm.update_and_score(rollouts.prm_data(scores, sizes.rows, **options))

    _, row["first_update_seconds"], _ = timed(update)
    _, row["update_seconds"], row["update_peak"] = timed(update)
    row["idle"], row["pinned"] = memory()
    trained = values(score(prm, rollouts, **options))
    _, row["save_seconds"], _ = timed(lambda: prm.save_checkpoint(str(saved)))
    row["idle_after_save"] = memory()[0]
    update()
    moved = values(score(prm, rollouts, **options))
    _, row["load_seconds"], _ = timed(lambda: prm.load_checkpoint(str(saved)))
    row["idle_after_load"] = memory()[0]
    restored = values(score(prm, rollouts, **options))
    # 0.064 on an H200 (results/NVIDIA_H200.json): bf16 at logits of trained models' size.
    bound = 0.1 if CUDA else 1e-4
    condition(row["error_packed"] < bound, f"{label}: packed scores agree with plain fp32")
    condition(row["error_padded"] < bound, f"{label}: padded scores agree with plain fp32")
    condition(not torch.equal(moved, trained), f"{label}: an update moves the PRM")
    condition(torch.equal(restored, trained), f"{label}: a restored PRM scores the same")
    return row


def measure_noise(sizes: Sizes, folder: Path, found: dict[str, Any]) -> None:
    """Measure differences between passes with equal weights, per token and summed per response."""
    path = save_qwen(folder / "noise", sizes.model)
    rollouts = sample_rollouts(path, sizes)
    expected = plain_scores(path, rollouts)
    free()
    lengths = [len(response) for response in rollouts.responses]
    few, many = sizes.budgets
    scores: dict[str, torch.Tensor] = {"plain float32": expected}
    with built(path) as prm:
        for fused, tokens in product((False, True), sizes.budgets):
            with engines.chunked(prm) if fused else nullcontext():
                kind = f"{'chunked' if fused else 'plain'}, {tokens} tokens"
                scores[kind] = values(score(prm, rollouts, **packed(tokens)))
                repeated = values(score(prm, rollouts, **packed(tokens)))
                condition(
                    torch.equal(scores[kind], repeated), f"{kind}: two passes are equal to the bit"
                )
    pairs = [(f"{kind}, {few} tokens", f"{kind}, {many} tokens") for kind in ("plain", "chunked")]
    pairs += [(kind, "plain float32") for kind in scores if kind != "plain float32"]
    for one, other in pairs:
        difference = scores[one] - scores[other]
        sums = torch.stack([part.sum() for part in difference.split(lengths)])
        found[f"{one} against {other}"] = {
            "token_std": float(difference.std()),
            "token_largest": float(difference.abs().max()),
            "response_std": float(sums.std()),
        }
        print(f"    {one} against {other}: {found[f'{one} against {other}']}", flush=True)


def measure_budget(sizes: Sizes, folder: Path, found: dict[str, Any]) -> None:
    path = save_qwen(folder / "budget", sizes.model)
    rollouts = Rollouts(4 * sizes.rows, sizes.prompt, sizes.response, sizes.model["vocab_size"])
    with built(path) as prm:
        base = score(prm, rollouts, **packed(sizes.budgets[0]))
        for fused, tokens, name in product((False, True), sizes.budgets, ("score", "update")):

            def run(name: str = name, tokens: int = tokens) -> Any:
                if name == "score":
                    return score(prm, rollouts, **packed(tokens))
                return prm.update_and_score(
                    rollouts.prm_data(base, rollouts.rows, **packed(tokens))
                )

            with engines.chunked(prm) if fused else nullcontext():
                run()
                _, seconds, most = sorted((timed(run) for _ in range(3)), key=lambda each: each[1])[
                    1
                ]
            label = f"{name}, {tokens} tokens, {'chunked' if fused else 'plain'}"
            found[label] = {
                "seconds": seconds,
                "tokens_per_second": rollouts.tokens / seconds,
                "peak_mib": most,
            }
            print(f"    {label}: {found[label]}", flush=True)


def table(parts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return measurements and what ``python -m prime_ext.doctor --plan`` expects (MiB)."""
    rows = []
    for label, row in parts.get("engines", {}).get("found", {}).items():
        rows.append(
            (
                f"{label}: peak of an update",
                f"{row['update_peak']:.0f}",
                f"{row['planned_peak']:.0f}",
            )
        )
        for name, when in zip(
            IDLE, ("between passes", "after a save", "after a load"), strict=True
        ):
            rows.append((f"{label}: held {when}", f"{row[name]:.0f}", f"{row['planned_idle']:.0f}"))
        rows.append((f"{label}: pinned on the host", f"{row['pinned']:.0f}", ""))
    for label, row in parts.get("noise", {}).get("found", {}).items():
        rows.append((f"{label}: std of q per token", f"{row['token_std']:.5f}", "0.01-0.05"))
    for label, row in parts.get("budget", {}).get("found", {}).items():
        rows.append((f"{label}: seconds", f"{row['seconds']:.3f}", ""))
    return rows


MEASUREMENTS = {"engines": measure_engines, "noise": measure_noise, "budget": measure_budget}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--tiny", action="store_true", help="sizes of a test")
    parser.add_argument(
        "--output", type=Path, help="default: results/DEVICE.json next to this file"
    )
    arguments = parser.parse_args()
    if not CUDA and not arguments.tiny:
        raise SystemExit(
            "no CUDA device; VERL_PLATFORM=cpu and --tiny try the measurements on the CPU"
        )
    sizes = TINY if arguments.tiny else FULL
    parts: dict[str, Any] = {}
    output = (
        arguments.output
        or HERE / "results" / f"{torch.cuda.get_device_name().replace(' ', '_')}.json"
    )
    stopped: list[int] = []

    def stop(signum: int, frame: Any) -> None:
        stopped.append(signum)
        raise TimeoutError("the limit of this part was reached")

    # What was measured until then is kept.
    signal.signal(signal.SIGTERM, stop)
    for name in arguments.only:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        results: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            try:
                MEASUREMENTS[name](sizes, Path(folder), results)
            except Exception as error:
                # The other measurements are still worth having.
                traceback.print_exc()
                condition(False, f"{name} ran to its end ({type(error).__name__}: {error})")
        free()
        parts[name] = {"found": results, "seconds": time.perf_counter() - start}
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(
            output,
            {"machine": describe(DEVICE.type), "stand_ins": STOOD_IN, "failed": FAILED, **parts},
        )
        if stopped:
            break
    for what, measured, planned in (("", "measured", "planned"), *table(parts)):
        print(f"{what:60} {measured:>12} {planned:>12}")
    print(f"{len(FAILED)} conditions failed; written to {output}", flush=True)
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
