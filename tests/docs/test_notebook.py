# SPDX-License-Identifier: Apache-2.0
"""Notebooks hold no outputs; the quickstart's runs to its end on a folder like its own."""

import json
from pathlib import Path

import matplotlib
import pytest
import torch

from recipes.quickstart.quickstart_data import write_data
from recipes.quickstart.small_model import build_model, build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOK = TUTORIALS / "implicit_prm.ipynb"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_data(folder / "data", train_size=4, val_size=4, test_size=20, sft_size=4)
    tokenizer = build_tokenizer()
    for seed, name in enumerate(("sft", "prm", "policy")):
        model = build_model(tokenizer, seed)
        torch.nn.init.normal_(model.model.norm.weight, 1.0, 0.5)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "settings.txt").write_text("BETA=0.5\n")
    return folder


def test_every_cell_runs_and_shows_what_it_says(run, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("RUN", str(run))
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert len(names["scored"]) == 20 and set(names["accuracy"]) == {
        "one at random", "majority", "PRM's choice", "any of them"
    }  # fmt: skip
    page = names["Colored"](names["scored"][:2])._repr_html_()
    assert page.count("<p>") == 2 and "background:#" in page and len(names["figure"].axes) == 2


@pytest.mark.parametrize("path", sorted(TUTORIALS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_compile_and_hold_no_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            compile("".join(cell["source"]), cell["id"], "exec")
