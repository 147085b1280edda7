# SPDX-License-Identifier: Apache-2.0
"""What the plan says instead of guessing."""


class PlanError(ValueError):
    """A plan cannot be made; the message is one line that says why."""
