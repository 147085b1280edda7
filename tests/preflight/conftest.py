# SPDX-License-Identifier: Apache-2.0
from own_sources import own_sources  # noqa: F401
