# SPDX-License-Identifier: Apache-2.0
"""Small programs of tests/gpu/device_run.py: what training compiles, inputs of its runs, logs.

    python tests/gpu/device_probes.py toolchain | triton | compile | flash_attn
    python tests/gpu/device_probes.py inputs WORK [--tiny]
    python tests/gpu/device_probes.py logs WORK RESULTS

DEVICE (cuda or cpu) is where they compute.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
DEVICE = os.environ.get("DEVICE", "cuda")
# What the runs leave to read, apart from checkpoints and models.
TEXTS = ("console.log", "configuration.yaml", "metrics.jsonl")
# Seconds: Ray's sessions of a first run are younger.
SESSION_AGE = 1200
# The last bytes of a log of Ray.
TAIL = 200_000


def check_toolchain() -> None:
    """Compile one file of C with Python.h, as Triton does for each of its kernels."""
    names = ("gcc", "clang", "cc")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, names)), None)
    nvcc = shutil.which("nvcc") or "not found; only FlashInfer and a build of flash-attn need it"
    print(f"nvcc: {nvcc}")
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    if compiler is None:
        raise SystemExit("no C compiler: apt-get install gcc, or set CC")
    include = sysconfig.get_path("include")
    words = [compiler, "-fsyntax-only", "-I", include, "-x", "c", "-"]
    done = subprocess.run(words, input="#include <Python.h>\n", text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{compiler} finds no Python.h in {include}: apt-get install {package}")
    print(f"C compiler: {compiler}; Python.h: {include}")


def check_triton() -> None:
    """Run one kernel."""
    import torch
    from triton_kernel import add

    x, y = torch.arange(2000, dtype=torch.float32, device=DEVICE).reshape(2, 1000)
    assert torch.equal(add(x, y), x + y)


def check_compile() -> None:
    """Compile a function, and compare its value and gradient with the function as it is."""
    import torch
    from torch._dynamo.utils import counters

    def loss(hidden_NH: torch.Tensor, weight_VH: torch.Tensor) -> torch.Tensor:
        return (hidden_NH @ weight_VH.T).float().log_softmax(-1)[:, 0].sum()

    counters.clear()
    torch.manual_seed(0)
    results = []
    hidden_NH = torch.randn(64, 32, device=DEVICE)
    weight_VH = torch.randn(128, 32, device=DEVICE)
    for function in (loss, torch.compile(loss)):
        weight = weight_VH.clone().requires_grad_()
        value = function(hidden_NH, weight)
        value.backward()
        results.append((value.detach(), weight.grad))
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)
    if not counters["stats"]["unique_graphs"]:
        raise SystemExit("torch.compile compiled nothing: unset TORCH_COMPILE_DISABLE")


def check_flash_attn() -> None:
    """Compare packed attention, forward and backward, with torch's, sequence by sequence."""
    import torch
    from flash_attn import flash_attn_varlen_func

    torch.manual_seed(0)
    lengths = (100, 28)
    packed = torch.randn(3, sum(lengths), 4, 64, device=DEVICE, dtype=torch.bfloat16)
    flash = packed.clone().requires_grad_()
    plain = packed.clone().requires_grad_()
    bounds = torch.tensor([0, 100, 128], dtype=torch.int32, device=DEVICE)
    output = flash_attn_varlen_func(
        *flash.unbind(), bounds, bounds, max(lengths), max(lengths), causal=True
    )
    expected = torch.cat(
        [
            torch.nn.functional.scaled_dot_product_attention(
                *part.transpose(1, 2).unbind(), is_causal=True
            ).transpose(0, 1)
            for part in plain.split(lengths, dim=1)
        ]
    )
    for result in (output, expected):
        result.float().square().sum().backward()
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(flash.grad, plain.grad, rtol=5e-2, atol=5e-2)


def write_inputs(work: str, *options: str) -> None:
    """Write rows and models: tiny ones, and random weights in the shape of Qwen2.5-0.5B."""
    from recipes.smoke.prepare import prepare

    folder = Path(work)
    program = [sys.executable, "-m", "recipes.tiny_model", "--family"]
    writing = [
        subprocess.Popen([*program, family, "--output-dir", str(folder / family)], cwd=ROOT)
        for family in ("qwen2", "qwen3")
    ]
    if any([process.wait() for process in writing]):
        raise SystemExit("recipes.tiny_model ended with an error")
    # A shrunk run has 24 tokens for a prompt.
    short = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "qwen3" / "chat_template.jinja").write_text(short)
    prepare("prime", folder / "rows")
    if "--tiny" not in options:
        write_untrained_model(folder / "qwen2_0.5b", folder / "qwen2")


def write_untrained_model(folder: Path, tokens_from: Path) -> None:
    """Write random weights in the shape of Qwen2.5-0.5B-Instruct, with as many tokens as it has.

    Tokens that the tiny model's tokenizer lacks are numbers. An untrained model writes those nearly
    always, and the number of digits, which the smoke verifier counts, is even in half its texts.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Tokenizer

    tiny = AutoTokenizer.from_pretrained(tokens_from)
    shape = ROOT / "recipes" / "model_configs" / "Qwen2.5-0.5B-Instruct"
    special = {"eos_token_id": tiny.eos_token_id, "pad_token_id": tiny.pad_token_id}
    config = AutoConfig.from_pretrained(shape, bos_token_id=None, **special)
    vocabulary = tiny.get_vocab()
    vocabulary |= {str(number): number for number in range(len(vocabulary), config.vocab_size)}
    names = {name: getattr(tiny, name) for name in ("eos_token", "pad_token", "unk_token")}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, **names, chat_template=tiny.chat_template)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def copy_logs(work: str, results: str) -> None:
    """Copy what the runs logged, and the ends of Ray's logs of the last minutes."""
    target = Path(results) / "logs"
    for file in (file for name in TEXTS for file in Path(work).rglob(name)):
        copy = target / file.relative_to(work)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    ray = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray"
    for session in ray.glob("session_2*"):
        for file in (session / "logs").glob("*.*"):
            if file.is_file() and time.time() - file.stat().st_mtime < SESSION_AGE:
                copy = target / session.name / file.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes()[-TAIL:])


PROBES = {
    "toolchain": check_toolchain,
    "triton": check_triton,
    "compile": check_compile,
    "flash_attn": check_flash_attn,
    "inputs": write_inputs,
    "logs": copy_logs,
}

if __name__ == "__main__":
    PROBES[sys.argv[1]](*sys.argv[2:])
