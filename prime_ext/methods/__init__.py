# SPDX-License-Identifier: Apache-2.0
"""Methods that turn rollouts into rewards or pull the policy, a folder for each.

A folder has the name by which a run chooses the method. Its ``settings.py`` declares keys,
defaults, types, help and what the method needs; its ``source.py`` computes the rewards. The
sections of a run are in :mod:`prime_ext.methods.settings`, the variants in
:mod:`prime_ext.methods.variants`.
"""
