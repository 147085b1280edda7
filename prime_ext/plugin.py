# SPDX-License-Identifier: Apache-2.0
"""Plug-in that every verl process loads, by its entry point or by an environment variable.

The variable, ``VERL_USE_EXTERNAL_MODULES=prime_ext.plugin``, is loud: verl hides errors of an entry
point. ``python -m prime_ext.doctor`` shows them. Importing the plug-in registers the trainers, the
reward managers and, under ``VERL_PLATFORM=cpu``, CPU support; and it makes ``use_fused_kernels`` a
choice of each model.
"""

import warnings

# verl's optional engines: choosing one that is not installed is an error of its own. This comes
# before the imports, which warn.
warnings.filterwarnings(
    "ignore", r"\w+ engine is not available", UserWarning, r"verl\.workers\.engine"
)

import wrapt  # noqa: E402

from prime_ext.verl_adapter.cpu import is_active  # noqa: E402
from prime_ext.verl_adapter.cpu.install import ROLLOUT_HOOKS, install  # noqa: E402
from prime_ext.verl_adapter.patches import (  # noqa: E402
    agent_loop,
    checkpoint_handler,
    import_utils,
    monkey_patch,
)

if is_active():
    install()
HOOKS = {
    **ROLLOUT_HOOKS,
    "verl.experimental.agent_loop.agent_loop": agent_loop.apply,
    "verl.models.transformers.monkey_patch": monkey_patch.apply,
    "verl.utils.checkpoint.checkpoint_handler": checkpoint_handler.apply,
    "verl.utils.import_utils": import_utils.apply,
}
for module, hook in HOOKS.items():
    wrapt.register_post_import_hook(hook, module)

import prime_ext.verl_adapter.reward_managers  # noqa: E402
import prime_ext.verl_adapter.trainers  # noqa: E402, F401
