# SPDX-License-Identifier: Apache-2.0
"""The outcome reward: the verifier's verdict, as the reward manager returns it."""
