# SPDX-License-Identifier: Apache-2.0
"""The plan of an RL run: memory per device, from the config.json of its models."""
