# SPDX-License-Identifier: Apache-2.0
"""What verl loads in every process: by its entry point, or, loudly, ``VERL_USE_EXTERNAL_MODULES=prime_ext.plugin``.

Importing it registers the trainers, the reward managers and, under ``VERL_PLATFORM=cpu``, CPU support; and it makes
``use_fused_kernels`` a choice of each model. ``python -m prime_ext.doctor`` shows errors, which verl hides.
"""

import warnings

# verl's optional engines; choosing one that is not installed is an error of its own. First, because the imports warn.
warnings.filterwarnings("ignore", r"\w+ engine is not available", UserWarning, r"verl\.workers\.engine")

from prime_ext.cpu import is_active  # noqa: E402
from prime_ext.cpu.install import install, install_rollout  # noqa: E402

if is_active():
    install()
install_rollout()

import prime_ext.reward.managers  # noqa: E402, F401
import prime_ext.verl_adapter.trainers  # noqa: E402, F401
from prime_ext.prm import fused_forward  # noqa: E402
from prime_ext.verl_adapter import agent_loop  # noqa: E402

fused_forward.install_when_imported()
agent_loop.apply()
