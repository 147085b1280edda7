# SPDX-License-Identifier: Apache-2.0
"""Checks of ``trainer.logger``: packages, and keys of services that verl asks after the models."""

import netrc
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from prime_ext.run.ray_cluster import find_address

# Packages that verl imports, and variables without which it fails or asks at a prompt.
_PACKAGES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
}
_VARIABLES = {
    "vemlp_wandb": ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION")
}


def check_loggers(config: DictConfig) -> Iterable[str]:
    """Yield a line for each logger that cannot start here; a cluster has an environment itself."""
    loggers = config.trainer.get("logger") or []
    for name in [loggers] if isinstance(loggers, str) else loggers:
        key = f"trainer.logger has {name}"
        if name in _PACKAGES and find_spec(_PACKAGES[name]) is None:
            yield f"{key}, which is not installed: pip install {_PACKAGES[name]}, or leave it out"
        elif find_address(config) is not None:
            continue
        elif name == "wandb" and not _knows_wandb():
            yield (
                f"{key}, and no key of it is here; run `wandb login`, or set WANDB_API_KEY or"
                " WANDB_MODE=offline"
            )
        elif name == "swanlab" and not _knows_swanlab():
            yield f"{key}, and no key of it is here; set SWANLAB_API_KEY, or SWANLAB_MODE=local"
        elif missing := [
            variable for variable in _VARIABLES.get(name, ()) if not os.environ.get(variable)
        ]:
            yield f"{key}, which needs the variables {', '.join(missing)}; set them"


def _knows_wandb() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    if os.environ.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun"):
        return True
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        hosts = netrc.netrc(path).hosts if path.is_file() else {}
    except (netrc.NetrcParseError, OSError):
        return False
    service = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].rstrip("/")
    return service in hosts


def _knows_swanlab() -> bool:
    mode = os.environ.get("SWANLAB_MODE", "cloud")
    saved = Path(os.environ.get("SWANLAB_SAVE_DIR") or "~/.swanlab").expanduser() / ".netrc"
    return mode != "cloud" or bool(os.environ.get("SWANLAB_API_KEY")) or saved.is_file()
