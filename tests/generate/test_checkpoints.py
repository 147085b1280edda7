# SPDX-License-Identifier: Apache-2.0
"""Models as a user may name them, and what each becomes."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from safetensors.torch import load_file
from tiny_llama import save_llama

from prime_ext.generate.backend import BackendError, Request, Sampling
from prime_ext.generate.export import TRACKER, main
from prime_ext.generate.local_model import EXPORTED, find_model, weight_files
from prime_ext.generate.open import open_backend
from prime_ext.generate.prm_description import FILE, prm_description, read_description
from prime_ext.utils.files import digest_files, read_json, write_json


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("model"))


ACTOR = Path("global_step_3", "actor")


def test_folders_and_hub_ids_are_returned_unchanged(model_path):
    for name in (str(model_path), "Qwen/Qwen2.5-Math-7B", "gpt2"):
        assert find_model(name) == name


def test_the_digest_distinguishes_weights_but_not_copies(model_path, tmp_path):
    copy = shutil.copytree(model_path, tmp_path / "copy")
    other = save_llama(tmp_path / "other", seed=1)
    of_copy, of_model, of_other = (
        digest_files(weight_files(folder)) for folder in (copy, model_path, other)
    )
    assert of_copy == of_model != of_other


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: None, "--model .*here does not exist"),
        (lambda path: path.write_text(""), "here is neither "),
        (lambda path: write_json(path / "config.json", {}), "here is neither "),
        (
            lambda path: (path / "global_step_1" / "actor" / "dist_ckpt").mkdir(parents=True),
            "global_step_1",
        ),
        (
            lambda path: (path / "actor" / "model" / "dist_ckpt").mkdir(parents=True),
            "Megatron; .*verl.model_merger",
        ),
    ],
)
def test_a_path_without_a_model_is_reported_in_one_line(tmp_path, make, message):
    make(tmp_path / "here")
    with pytest.raises(BackendError, match=message):
        find_model(str(tmp_path / "here"))


def test_prm_references_are_relative_and_only_fixed_ones_have_biases(model_path, tmp_path):
    run = {
        "prm": "org/sft",
        "reference": str(model_path),
        "reference_moves": False,
        "beta": 0.5,
        "loss": "ce",
    }
    description = prm_description(run, {"bias": -0.25}, tmp_path / "prm")
    assert description["bias"] == -0.25 and not Path(description["reference"]).is_absolute()
    write_json(tmp_path / "prm" / FILE, description)
    read = read_description(str(tmp_path / "prm"))
    assert (
        read == {**description, "reference": str(model_path.resolve())}
        and read["initial_model"] == "org/sft"
    )
    assert (
        prm_description({**run, "reference_moves": True}, {"bias": -0.25}, tmp_path)["bias"] is None
    )
    assert read_description("org/sft") == {}


@pytest.fixture(scope="module")
def saved(model_path, tmp_path_factory):
    """Return a run's folder with a checkpoint of two ranks, and its trained weights in float32."""
    work_dir = tmp_path_factory.mktemp("ranks")
    weights = run_ranks(Path(__file__).parent / "checkpoint_rank.py", [model_path], {2: work_dir})[
        2
    ]
    (work_dir / "run" / TRACKER).write_text("3")
    return work_dir / "run", weights


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "run")


@pytest.mark.slow
def test_sharded_checkpoints_are_exported_once_until_they_change(saved, capsys):
    run, weights = saved
    actor = run / ACTOR
    paths = [find_model(str(folder)) for folder in (run, run / "global_step_3", actor)]
    assert set(paths) == {str(actor / EXPORTED)}
    assert capsys.readouterr().err.count("exporting ") == 1
    exported = load_file(actor / EXPORTED / "model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {
        torch.float32
    } and exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in exported)
    next(
        open_backend("transformers", str(run), device="cpu").generate(
            [Request("a", "x", Sampling(max_new_tokens=1))]
        )
    )
    os.utime(actor / "model_world_size_2_rank_1.pt")
    find_model(str(run)), find_model(str(run))
    assert capsys.readouterr().err.count("exporting ") == 1


@pytest.mark.slow
def test_the_command_exports_the_latest_step_and_never_overwrites(saved, tmp_path, capsys):
    run, weights = saved
    words = [str(run), str(tmp_path / "out"), "--dtype", "bfloat16"]
    assert main(words) == 0
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(exported[name], weights[name].bfloat16()) for name in weights)
    assert read_json(tmp_path / "out" / "config.json")["dtype"] == "bfloat16"
    assert main(words) == main([str(tmp_path), str(tmp_path / "other")]) == 2
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert (
        "out exists; name a folder that does not" in first
        and "must be the folder prm or actor" in second
    )


@pytest.mark.slow
def test_weights_in_hugging_face_format_within_a_checkpoint_are_used(run, model_path):
    ready = run / ACTOR / "huggingface"
    shutil.copy(model_path / "model.safetensors", ready)
    assert find_model(str(run)) == str(ready)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda run: (run / ACTOR / "model_world_size_2_rank_1.pt").unlink(),
            "1 of 2 shards .*size_2_rank_1.pt",
        ),
        (
            lambda run: [file.unlink() for file in (run / ACTOR).glob("*.pt")],
            "has no model_world_size_",
        ),
        (lambda run: (run / TRACKER).write_text("9"), "names step 9"),
        (lambda run: (run / TRACKER).unlink(), "latest .*global_step_3"),
    ],
)
def test_checkpoints_that_are_not_whole_are_one_line(run, change, message):
    change(run)
    with pytest.raises(BackendError, match=message):
        find_model(str(run))


@pytest.mark.slow
def test_an_export_that_fails_leaves_nothing_behind(run):
    actor = run / ACTOR
    shutil.rmtree(actor / EXPORTED, ignore_errors=True)
    (actor / "model_world_size_2_rank_0.pt").write_bytes(b"half a file")
    with pytest.raises(BackendError, match="model_world_size_2_rank_0.pt cannot be read: "):
        find_model(str(run))
    assert not any(name.startswith((EXPORTED, f".{EXPORTED}")) for name in os.listdir(actor))


@pytest.mark.slow
def test_flipped_bytes_of_a_shard_are_not_exported(run, tmp_path, capsys):
    path = run / ACTOR / "model_world_size_2_rank_1.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert main([str(run), str(tmp_path / "out")]) == 2 and not (tmp_path / "out").exists()
    assert (
        "model_world_size_2_rank_1.pt cannot be read: its bytes have changed"
        in capsys.readouterr().err
    )
