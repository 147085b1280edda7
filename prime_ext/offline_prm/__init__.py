# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m prime_ext.offline_prm``."""
