# SPDX-License-Identifier: Apache-2.0
"""What replaces something of verl, vLLM or Python: a file for each module that is patched; README.md has the table."""
