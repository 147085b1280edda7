# SPDX-License-Identifier: Apache-2.0
"""A model of the form of Qwen2.5-Math-PRM, which transformers loads as a model's own code."""

from torch import nn
from transformers import Qwen2Model
from transformers.models.qwen2.modeling_qwen2 import Qwen2PreTrainedModel


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):
    """Qwen2 with two classes at each token, from two layers."""

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        size = config.hidden_size
        self.score = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 2))
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        hidden_BTH = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
        return (self.score(hidden_BTH),)
