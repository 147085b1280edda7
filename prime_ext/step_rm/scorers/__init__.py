# SPDX-License-Identifier: Apache-2.0
"""Step scores, from a model in this process or from a server; see
:mod:`prime_ext.step_rm.scorers.protocol`."""
