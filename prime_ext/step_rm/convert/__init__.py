# SPDX-License-Identifier: Apache-2.0
"""Public formats of labelled steps into one parquet schema (:mod:`prime_ext.step_rm.records`)."""
