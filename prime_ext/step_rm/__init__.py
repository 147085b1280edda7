# SPDX-License-Identifier: Apache-2.0
"""Steps of responses, and models that score them. No verl; torch to train and score locally."""
