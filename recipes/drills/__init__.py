# SPDX-License-Identifier: Apache-2.0
"""Fault drills: a small run on the CPU, one fault, and what becomes of the run and of what it had saved.

    python -m recipes.drills --work-dir outputs/drills --output outputs/drills/results.json
    python -m recipes.drills --only kill_driver --only full_disk ...

docs/fault_drills.md has the table; ``recipes/drills/results.json`` is what it was made from.
"""
