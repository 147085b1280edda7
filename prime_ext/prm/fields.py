# SPDX-License-Identifier: Apache-2.0
"""Names of the implicit PRM's fields in the store of rollouts, and options of its passes."""

# Fields of the PRM in the store of rollouts: log-probabilities cover the response, the others are
# one value per row.
PRM_LOG_PROBS = "prm_log_probs"
REFERENCE_LOG_PROBS = "prm_reference_log_probs"
LABEL = "prm_label"
WEIGHT = "prm_weight"
OFFSET = "prm_offset"
ROW = "prm_row"

# Input fields of verl's engines and of the loss, in addition to those above: for rollouts without
# images, and for all rollouts.
TEXT_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
INPUT_FIELDS = (*TEXT_FIELDS, "multi_modal_inputs")

# Options of `score`: the field to write to and, if passes must not cross mini-batches, the rows of
# a mini-batch over all ranks.
OUTPUT_FIELD = "prm_output_field"
MINI_BATCH_ROWS = "prm_mini_batch_rows"
