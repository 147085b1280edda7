# SPDX-License-Identifier: Apache-2.0
"""Pure torch functions of PRIME: process rewards, PRM losses, advantages. No verl, no Ray, no I/O.

Axes in tensor names: ``B`` rollouts, ``T`` response tokens, ``S`` steps of a response, ``C`` cuts
of a response, ``G`` prompt groups, ``N`` members of a group or a list of entries, ``H`` hidden
width, ``V`` vocabulary, ``1`` one column.
"""
