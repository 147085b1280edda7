# SPDX-License-Identifier: Apache-2.0
"""Step scores from a model in this process or a server; ``protocol`` has the interface."""
