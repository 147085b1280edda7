# SPDX-License-Identifier: Apache-2.0
"""Identity of a checkpoint's training, so that no run of another resumes from it by itself.

It has data, tokenizer and seeds. Files are compared by :func:`prime_ext.utils.files.digest_files`,
not by their place.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig

from prime_ext.run.checkpoint import MARKER, find_complete_steps
from prime_ext.utils.files import digest_files, read_json

_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "special_tokens*",
    "added_tokens*",
    "chat_template*",
    "*.model",
)

# By key: the value for people, and what is compared.
Identity = dict[str, list[Any]]


def read_identity(config: DictConfig) -> Identity:
    """Return a run's training files, tokenizer and seeds; files elsewhere count by name."""
    files = config.data.train_files
    model = config.actor_rollout_ref.model
    paths = list(files) if isinstance(files, ListConfig) else [files]
    tokenizer = Path(model.get("tokenizer_path") or model.path).expanduser()
    parts = sorted(
        {path for pattern in _TOKENIZER_FILES for path in tokenizer.glob(pattern) if path.is_file()}
    )
    rollout = config.actor_rollout_ref.rollout
    seeds = {
        "data.seed": config.data.get("seed"),
        "actor_rollout_ref.rollout.seed": rollout.get("seed"),
    }
    return {
        "data.train_files": [
            ", ".join(map(str, paths)),
            digest_files(Path(str(path)).expanduser() for path in paths),
        ],
        "the tokenizer of": [str(tokenizer), digest_files(parts or [tokenizer])],
        **{key: [seed, seed] for key, seed in seeds.items()},
    }


def refusal(config: DictConfig, identity: Identity) -> str:
    """Return why a run must not resume from its folder by itself; empty if it may."""
    root = Path(config.trainer.default_local_dir)
    steps = find_complete_steps(root) if config.trainer.resume_mode == "auto" else []
    if not steps or config.trainer.get("val_only", False):
        return ""
    checkpoint = root / f"global_step_{steps[-1]}"
    marker = checkpoint / MARKER
    kept: Identity = read_json(marker).get("identity", {}) if marker.is_file() else {}
    changed = [
        f"{key} {kept[key][0]}, now it is {'changed' if shown == kept[key][0] else shown}"
        for key, (shown, compared) in identity.items()
        if key in kept and kept[key][1] != compared
    ]
    if not changed:
        return ""
    return (
        f"{checkpoint} was trained with {'; '.join(changed)}; choose another"
        " trainer.default_local_dir, or, to continue from it all the same, set"
        f" trainer.resume_mode=resume_path trainer.resume_from_path={checkpoint}"
    )
