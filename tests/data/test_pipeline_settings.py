# SPDX-License-Identifier: Apache-2.0
"""Settings of the pipeline: what ships can be read, words on the command line go over it, mistakes are one line."""

from pathlib import Path

import pytest

from data_preprocessing.pipeline_settings import load_settings
from data_preprocessing.stage_registry import STAGES
from prime_ext.utils.rows import SourceError

FOLDER = Path(__file__).resolve().parents[2] / "data_preprocessing" / "settings"
SHIPPED = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_names_every_option_of_its_stages_with_its_default(path):
    import yaml

    settings = load_settings(path)
    content = yaml.safe_load(path.read_text())
    for kind, options in settings.stages:
        assert options == kind.options()
        assert list(content["stages"][kind.name]) == list(vars(options))


def test_the_shipped_files_name_all_stages():
    assert [path.stem for path in SHIPPED] == ["code", "gsm8k_math", "math"]
    named = {kind.name for path in SHIPPED for kind, _ in load_settings(path).stages}
    assert named == {"math_rules", "code_rules", "code_tests", "deduplicate", "decontaminate", "check_solutions"}
    assert named <= set(STAGES)


def test_words_go_over_the_file_and_null_leaves_out():
    words = ["stages.decontaminate=null", "stages.deduplicate.threshold=0.9", "sources.math=null", "data_dir=D"]
    settings = load_settings(
        FOLDER / "gsm8k_math.yaml",
        [*words, "stages.math_rules.rules=[]", "sources.gsm8k.input.test=t.jsonl", "system_prompt=none"],
    )
    assert [source.name for source in settings.sources] == ["gsm8k"]
    assert settings.sources[0].files == {"test": Path("t.jsonl")}
    assert [kind.name for kind, _ in settings.stages] == ["math_rules", "deduplicate"]
    assert settings.stages[0][1].rules == () and settings.stages[1][1].threshold == 0.9
    assert settings.data_dir == Path("D") and settings.system == ""


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stages.deduplicat.threshold=1", "stages has no key 'deduplicat'; did you mean deduplicate?"),
        ("stages.deduplicate.treshold=1", "stages.deduplicate has no key 'treshold'; did you mean threshold?"),
        ("stages.deduplicate.threshold=2", "stages.deduplicate.threshold must be above 0 and at most 1, got 2.0"),
        ("stages.deduplicate.ngram=1.5", "stages.deduplicate.ngram must be a whole number, got 1.5"),
        ("stages.deduplicate.same_answer=1", "stages.deduplicate.same_answer must be true or false, got 1"),
        ("stages.deduplicate.levels=[]", "stages.deduplicate.levels is empty"),
        ("stages.math_rules.rules=[fun]", "stages.math_rules.rules has 'fun', which is none of giant"),
        ("stages.decontaminate.tasks=[gsm9k]", "stages.decontaminate.tasks has 'gsm9k', which is neither all nor"),
        ("stages.decontaminate.levels=3", "stages.decontaminate.levels must be a list of texts, got 3"),
        ("sources.gsm9k={}", "sources has no key 'gsm9k'; did you mean gsm8k?"),
        ("sources.gsm8k.splits=[dev]", "sources.gsm8k.splits has 'dev', which is none of train"),
        ("sources.gsm8k.file=x", "sources.gsm8k has no key 'file'"),
        ("chunk_row=3", "settings has no key 'chunk_row'; did you mean chunk_rows?"),
        ("chunk_rows=0", "chunk_rows must be a whole number from 1"),
        ("validate.max_prompt_length=3", "validate needs the key 'tokenizer'"),
        ("system_prompt=nowhere.txt", "--system-prompt must be actions, none or a text file"),
        ("generated_rows.train=0", "generated_rows.train must be a whole number from 1"),
        ("nonsense", "'nonsense' is no KEY=VALUE"),
    ],
)
def test_a_mistake_is_one_line_with_the_key(word, reason):
    with pytest.raises(SourceError) as error:
        load_settings(FOLDER / "gsm8k_math.yaml", [word])
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_yaml_or_names_a_key_twice_is_one_line(tmp_path):
    for content in ("a: [", "seed: 1\nseed: 2\n", "- 1\n", ""):
        (tmp_path / "x.yaml").write_text(content)
        with pytest.raises(SourceError, match=r"x\.yaml: |x\.yaml is not YAML") as error:
            load_settings(tmp_path / "x.yaml")
        assert "\n" not in str(error.value)
    with pytest.raises(SourceError, match="no settings at"):
        load_settings(tmp_path / "y.yaml")
