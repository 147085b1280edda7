# SPDX-License-Identifier: Apache-2.0
"""The trained bias of the PRM's cross-entropy: one number with its own optimizer."""

from pathlib import Path

import torch
import torch.distributed as dist
from verl.utils.device import get_device_name
from verl.workers.engine import BaseEngine

from prime_ext.algorithms.prm_losses import compute_logit
from prime_ext.generate.export import BIAS_FILE
from prime_ext.utils.files import read_json, write_json

BETAS = (0.9, 0.99)
# At the logit of the mean outcome the first gradient is mere rounding; AdamW must not take a full
# step along it.
EPSILON = 1e-4
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class OutcomeBias:
    """b in sigmoid(beta * Q + b), a float64 on the device, the same on all ranks.

    AdamW without weight decay steps whenever the engine's optimizer does, which skips gradients
    that are not finite.
    """

    def __init__(self, lr: float):
        self._started = False
        self.parameter = torch.nn.Parameter(
            torch.tensor(0.0, dtype=torch.float64, device=get_device_name())
        )
        self._optimizer = torch.optim.AdamW([self.parameter], lr, BETAS, EPSILON, weight_decay=0.0)

    @property
    def value(self) -> float:
        """Return b, which is 0 before it has a starting value."""
        return float(self.parameter.detach())

    def start(self, mean_outcome: float) -> None:
        """Start at the logit of a mean outcome, unless a checkpoint has set a value."""
        if not self._started:
            self._started = True
            self.parameter.data.fill_(compute_logit(mean_outcome))

    def zero_grad(self) -> None:
        """Drop the gradient of a step that was skipped."""
        self._optimizer.zero_grad()

    def follow(self, engine: BaseEngine) -> None:
        """Step after every step of the engine's optimizer from now on."""
        engine.optimizer.register_step_post_hook(lambda *_: self._step(engine))

    def _step(self, engine: BaseEngine) -> None:
        scaler = getattr(engine, "scaler", None)
        scale = 1.0 if scaler is None else scaler.get_scale()
        gradient = self.parameter.grad
        assert gradient is not None, "the engine stepped without a backward pass of the loss"
        # The loss of a rank contains the number of ranks, because engines average gradients.
        dist.all_reduce(gradient, group=engine.get_data_parallel_group())
        gradient.div_(engine.get_data_parallel_size() * scale)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def save(self, folder: Path, beta: float) -> None:
        """Write b, its moments, and the beta it belongs to."""
        moments = self._optimizer.state.get(self.parameter, {})
        state = {name: float(moments[name]) if moments else 0.0 for name in _MOMENTS}
        write_json(
            folder / BIAS_FILE,
            {"bias": self.value if self._started else None, "beta": beta, **state},
        )

    def load(self, folder: Path) -> None:
        """Restore the values that :meth:`save` wrote.

        Raises FileNotFoundError: the checkpoint was saved without a bias.
        """
        if not (folder / BIAS_FILE).is_file():
            raise FileNotFoundError(
                f"the checkpoint has no bias of the PRM, {folder / BIAS_FILE}; it was saved with"
                " prm.bias_lr=null"
            )
        state = read_json(folder / BIAS_FILE)
        if state["bias"] is None:
            return
        self._started = True
        self.parameter.data.fill_(state["bias"])
        moments = {name: torch.full_like(self.parameter, state[name]) for name in _MOMENTS}
        # AdamW counts its steps on the host, in the default dtype.
        self._optimizer.state[self.parameter] = {**moments, "step": torch.tensor(state["step"])}
