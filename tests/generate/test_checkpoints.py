# SPDX-License-Identifier: Apache-2.0
"""Models as a user may name them, and what each becomes."""

import os
import re
import resource
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
from prime_ext.utils.run_store import RunError


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
        (lambda path: (path / "global_step_1" / "actor" / "dist_ckpt").mkdir(parents=True),
         "global_step_1"),
        (lambda path: (path / "actor" / "model" / "dist_ckpt").mkdir(parents=True),
         "Megatron; .*verl.model_merger"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is broken or half-written"),
        ("[]", "is a list, not an object"),
        ('{"beta": "0.05"}', "beta must be a number, got '0.05'"),
        ('{"beta": true}', "beta must be a number, got True"),
        ('{"beta": NaN}', "NaN is not a JSON number"),
        ('{"beta": 0}', "beta must be above 0, got 0"),
        ('{"beta": null}', "beta must be above 0, got None"),
        ('{"reference": ["a"]}', "reference must be a text"),
        ('{"step_separator": 1}', "step_separator must be a text, got 1"),
        ('{"append_eos": "no"}', "append_eos must be true or false, got 'no'"),
    ],
)
def test_a_wrong_description_is_one_line(tmp_path, text, message):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match=re.escape(message)) as error:
        read_description(str(tmp_path))
    assert str(tmp_path / FILE) in str(error.value) and "\n" not in str(error.value)


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
        (lambda run: (run / ACTOR / "model_world_size_2_rank_1.pt").unlink(),
         "1 of 2 shards .*size_2_rank_1.pt"),
        (lambda run: [file.unlink() for file in (run / ACTOR).glob("*.pt")],
         "has no model_world_size_"),
        (lambda run: (run / TRACKER).write_text("9"), "names step 9"),
        (lambda run: (run / TRACKER).unlink(), "latest .*global_step_3"),
    ],
)  # fmt: skip
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


@pytest.fixture
def whole_checkpoint(model_path, tmp_path):
    """Return a step with policy and PRM of one rank, as a complete checkpoint of a run has them."""
    step = tmp_path / "run" / "global_step_3"
    for role in ("actor", "prm"):
        shutil.copytree(model_path, step / role / "huggingface")
        (step / role / "huggingface" / "model.safetensors").unlink()
        weights = load_file(model_path / "model.safetensors")
        torch.save(weights, step / role / "model_world_size_1_rank_0.pt")
    run = {"prm": "org/sft", "reference": str(model_path), "reference_moves": False}
    run |= {"beta": 0.5, "loss": "ce", "variant": "guarded", "step": 3, "reference_mode": "frozen"}
    write_json(step / FILE, run)
    identity = {
        "data.train_files": ["/data/of/somebody/train.parquet", "abc"],
        "the tokenizer of": ["org/sft", "abc"],
        "data.seed": [7, 7],
    }
    write_json(step / "prime_ext_complete.json", {"identity": identity, "files": {}})
    return step


def test_exports_have_a_model_card(whole_checkpoint, model_path, tmp_path):
    cards = {}
    for role in ("actor", "prm"):
        assert main([str(whole_checkpoint), str(tmp_path / f"my_{role}"), "--role", role]) == 0
        cards[role] = (tmp_path / f"my_{role}" / "README.md").read_text()
        head = "---\nlibrary_name: transformers\nbase_model: org/sft\ntags: [prime-ext, "
        assert cards[role].startswith(head)
        shown = cards[role].replace("\\", "")
        assert f"# my_{role}" in shown and "| training step | 3 |" in shown
        assert "| weights | float32 |" in shown and 'from_pretrained("FOLDER")' in cards[role]
        assert "/data/of" not in cards[role] and str(tmp_path) not in cards[role]
    shown = cards["actor"].replace("\\", "")
    for row in (
        "| variant | guarded |",
        "| data.train_files | train.parquet |",
        "| data.seed | 7 |",
    ):
        assert row in shown
    reference = os.path.relpath(model_path, tmp_path / "my_prm")
    assert "| beta | 0.5 |" in cards["prm"] and "reinforcement-learning" not in cards["prm"]
    assert f'reference = AutoModelForCausalLM.from_pretrained("{reference}")' in cards["prm"]
    # A checkpoint that says nothing of its run has a card too.
    (whole_checkpoint / FILE).unlink()
    (whole_checkpoint / "prime_ext_complete.json").unlink()
    assert main([str(whole_checkpoint), str(tmp_path / "bare")]) == 0
    card = (tmp_path / "bare" / "README.md").read_text()
    assert "base_model" not in card and "| training step | 3 |" in card and "null" not in card


def test_an_export_on_a_full_disk_is_one_line(whole_checkpoint, tmp_path, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        assert main([str(whole_checkpoint), str(tmp_path / "out")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("prime_ext.generate.export: ") and "free space on the disk" in line
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


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
