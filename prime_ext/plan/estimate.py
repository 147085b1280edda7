# SPDX-License-Identifier: Apache-2.0
"""Hours of a run from its FLOPs: estimates, nothing here was measured.

What is computed is divided by the peak of a device and a utilisation. Generation is bound by memory and not by FLOPs;
how long it takes beside the policy's update is taken over from the paper (arXiv 2502.01456, table 2: 8 A800,
Eurus-2-7B, responses of up to 3,072 tokens): rollout 281.7 s, policy update 156.6 s, all but those and the PRM 91.1 s.
"""

from dataclasses import dataclass

# Dense bf16 FLOPs per second, from the vendor's data sheets.
DEVICES = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
# An assumption. The paper's update of 156.6 s (6 N, 1,024 rollouts) is 18 % of the peak if they had 1,500 tokens on
# average, and 36 % at 3,000.
UTILISATION = 0.25
ROLLOUT_OVER_UPDATE, REST_OVER_UPDATE = 281.7 / 156.6, 91.1 / 156.6


@dataclass(frozen=True)
class Hours:
    """Time on one kind of device.

    Attributes:
        device: its name.
        step_seconds: of a training step.
        run_hours: of all steps; None where their number is not known before the data are.
        device_hours: the same times the number of devices.
    """

    device: str
    step_seconds: float
    run_hours: float | None
    device_hours: float | None


def estimate_hours(
    computed: float, policy_update: float, n_devices: int, steps: int | None, share_of_length: float
) -> list[Hours]:
    """Hours by kind of device.

    Args:
        computed: FLOPs per step of all training passes and scores, with sequences of full length.
        policy_update: FLOPs of the policy's update among them; 0 in a run that does not generate.
        n_devices: of the run.
        steps: training steps; None if unknown.
        share_of_length: mean length of a sequence over the longest.
    """
    found = []
    for name, peak in DEVICES.items():
        speed = n_devices * peak * UTILISATION
        # Prompts and other overhead grow with the update, so with the share too.
        beside = policy_update * (ROLLOUT_OVER_UPDATE + REST_OVER_UPDATE)
        seconds = share_of_length * (computed + beside) / speed
        hours = None if steps is None else steps * seconds / 3600
        found.append(Hours(name, seconds, hours, None if hours is None else hours * n_devices))
    return found
