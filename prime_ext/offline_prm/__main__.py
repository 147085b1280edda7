# SPDX-License-Identifier: Apache-2.0
"""Train an implicit PRM from labeled responses; see ``verl_adapter/offline_prm/program.py``."""

from prime_ext.verl_adapter.offline_prm.program import main

if __name__ == "__main__":
    raise SystemExit(main())
