# SPDX-License-Identifier: Apache-2.0
"""A sequence-classification model with three classes whose meaning is known."""

from typing import Any

from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS, StepRMError, class_order
from prime_ext.step_rm.train.settings import ModelSettings


def load_model(settings: ModelSettings) -> Any:
    """The model, with a head for -1, 0, 1.

    A model that already has such a head keeps it. One without a head gets a new one. One whose head means something
    else is refused, or gets a new one with ``model.new_head``.

    Raises:
        StepRMError: a head with other classes.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(settings.path, trust_remote_code=settings.trust_remote_code)
    has_head = any("SequenceClassification" in name for name in config.architectures or [])
    if has_head and not settings.new_head:
        order = class_order(config.id2label, settings.path + "; with model.new_head=true its head is replaced; it")
        if order != LABELS:
            raise StepRMError(
                f"{settings.path} has the classes in the order {order}, training uses {LABELS}; "
                "with model.new_head=true its head is replaced"
            )
    # Says that probabilities are a softmax; servers read it.
    config.num_labels, config.problem_type = len(LABELS), "single_label_classification"
    config.id2label, config.label2id = dict(ID2LABEL), dict(LABEL2ID)
    if has_head and settings.new_head:
        return _with_new_head(settings, config)
    return AutoModelForSequenceClassification.from_pretrained(
        settings.path, config=config, dtype="float32", trust_remote_code=settings.trust_remote_code
    )


def _with_new_head(settings: ModelSettings, config: Any) -> Any:
    from transformers import AutoModel, AutoModelForSequenceClassification

    body = AutoModel.from_pretrained(
        settings.path, dtype="float32", trust_remote_code=settings.trust_remote_code
    ).state_dict()
    model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=settings.trust_remote_code)
    missing, _ = model.base_model.load_state_dict(body, strict=False)
    if missing:
        raise StepRMError(f"{settings.path} lacks the weights {missing[0]} and {len(missing) - 1} more")
    return model
