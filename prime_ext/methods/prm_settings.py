# SPDX-License-Identifier: Apache-2.0
"""The section ``prm``: the implicit PRM, or a frozen model in its place. No torch."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Number,
    Positive,
    Section,
    Switch,
    Text,
    find_omitted,
    interpolate,
    limit_to,
    read,
    refuse,
)
from prime_ext.config.verl_keys import PRM_SECTIONS
from prime_ext.names import PRM_LOSSES

Loss = Annotated[Text, limit_to(PRM_LOSSES.keys)]

# An extra pass in every tenth step measures the pair accuracy after the PRM's update
# (update_mode=before: before it).
STEPS_PER_MEASUREMENT = 10
# Tokens of a pass without gradients: this multiple of a training pass's, up to the number that
# keeps a GPU busy.
FORWARD_MULTIPLE = 4
FORWARD_LIMIT = 32768


def forward_tokens(prm: Mapping[str, Any]) -> int:
    """Return the tokens per GPU of a pass without gradients through the PRM or its reference.

    ``prm`` is the section. By default they are four times those of a training pass, up to 32,768,
    with ``prm.model.use_fused_kernels``; otherwise as many as in training, because the logits would
    be the peak of memory.
    """
    if prm["infer_max_token_len_per_gpu"] is not None:
        return int(prm["infer_max_token_len_per_gpu"])
    training = int(prm["max_token_len_per_gpu"])
    if not prm["model"]["use_fused_kernels"]:
        return training
    return max(training, min(FORWARD_MULTIPLE * training, FORWARD_LIMIT))


@dataclass(frozen=True, config=STRICT)
class PRMSettings(Section):
    """A model that is never trained, in place of the implicit PRM: an offline PRM or a teacher.

    It has no optimizer, and checkpoints do not contain it. ``PRM_SECTIONS`` are sections of verl's.
    """

    section = "prm"

    update_mode: Literal["none", "before", "after", "interleaved"] = "none"
    """A frozen model is never trained."""
    beta: Positive = 0.05
    """r_t = beta * (log pi_prm - log pi_ref)."""
    reference: Literal["frozen", "policy", "base"] = "frozen"
    """pi_ref. frozen: a frozen copy of reference_path; policy: the policy's log-probabilities
    before its update; base: the PRM's own base weights with its LoRA adapter off (needs
    prm.model.lora_rank > 0; no second model)."""
    reference_path: str | None = interpolate("${.model.path}")
    """Model of the frozen reference."""
    mini_batch_size: Count = interpolate("${actor_rollout_ref.actor.ppo_mini_batch_size}")
    """Prompts per optimizer step (times rollout.n rollouts), as for the actor."""
    use_dynamic_bsz: Switch = interpolate("${actor_rollout_ref.actor.use_dynamic_bsz}")
    """Tokens or rollouts per forward pass, as for the actor."""
    micro_batch_size_per_gpu: Count | None = interpolate(
        "${actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu}"
    )
    """Rollouts per forward pass, with use_dynamic_bsz=false."""
    max_token_len_per_gpu: Count = interpolate(
        "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}"
    )
    """Tokens per forward pass, with use_dynamic_bsz=true."""
    infer_max_token_len_per_gpu: Count | None = None
    """Tokens per pass without gradients, of the reference and of scoring passes. null: four times
    max_token_len_per_gpu, up to 32768, with model.use_fused_kernels=true; otherwise as in training,
    because of the logits. Fewer passes are faster and copy an offloaded reference to the device
    less often. If it is not max_token_len_per_gpu, reference and PRM pack sequences differently,
    which adds rounding noise to q in the mode interleaved."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], find_conflicts: bool = True) -> "PRMSettings":
        """Build from the resolved section ``prm``, trained or not. Raises SettingsError."""
        prm_values = {key: value for key, value in values.items() if key not in PRM_SECTIONS}
        kind = PRMSettings if prm_values.get("update_mode") == "none" else TrainedPRMSettings
        settings = read(kind, prm_values, "prm")
        conflicts = settings.problems() if find_conflicts else ()
        refuse([*find_omitted(settings, prm_values, "prm"), *conflicts])
        return settings

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        if not self.use_dynamic_bsz and self.micro_batch_size_per_gpu is None:
            yield (
                "prm.micro_batch_size_per_gpu=None must be a whole number >= 1 with"
                " prm.use_dynamic_bsz=false"
            )


@dataclass(frozen=True, config=STRICT)
class TrainedPRMSettings(PRMSettings):
    """The implicit process reward model, trained online.

    It is on verl's FSDP engines (strategy fsdp or fsdp2), whatever the policy's engine is.
    """

    update_mode: Literal["none", "before", "after", "interleaved"] = "interleaved"
    """before: train, then score (double forward); after: score, then train; interleaved: score in
    the training forward passes (the paper's single forward). prm=frozen is a model that is never
    trained."""
    loss: Loss = "ce"
    """Loss: ce (cross-entropy of the outcome, PRIME), dpo (detached opponents), nca, kto, or one
    that your own module registers. dpo and kto need the scores before the update (update_mode after
    or before) and labels of 0 and 1."""
    bias_lr: Positive | None = None
    """Learning rate of a trained bias b in the cross-entropy: sigmoid(beta * sum of q + b). The
    bias learns what all responses have in common, so that q only has to distinguish them; rewards
    exclude it. It starts at the logit of the mean outcome of the first rollouts, within [-4, 4];
    AdamW, constant, no weight decay. null: no bias, as in the paper."""
    epochs: Count = 1
    """Passes over the rollouts of a step. interleaved takes its scores from the first."""
    replay: CountOrZero = 0
    """Number of past updates to replay from. Each mini-batch gets as many old rollouts as new ones;
    the loss is the mean over all of them. Needs loss ce and a reference that never changes. Kept in
    trainer.default_local_dir/prm_replay and in checkpoints. 0: no replay, as in the paper."""
    trainable_layers: Annotated[Number, Field(gt=0, lt=1)] | None = None
    """Train only the last layers: this fraction of the decoder layers, above 0 and below 1, rounded
    up. Embeddings, output layer and lower layers are frozen: no gradients, optimizer states or
    backward pass. null: train the complete model, as in the paper. Not with prm.model.lora_rank >
    0."""

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        yield from super().problems()
        replay = f"prm.replay={self.replay}"
        if self.bias_lr is not None and self.loss != "ce":
            yield (
                f"prm.bias_lr={self.bias_lr} has no effect with prm.loss={self.loss}, only with ce;"
                " set it to null"
            )
        if PRM_LOSSES[self.loss].needs_scores and self.update_mode == "interleaved":
            yield (
                f"prm.loss={self.loss} needs scores before the update: prm.update_mode=after or"
                " before"
            )
        if self.replay and self.reference == "policy":
            yield f"{replay} needs prm.reference to stay: set it to frozen or base"
        if self.replay and self.loss != "ce":
            yield (
                f"{replay} draws single rollouts, and prm.loss={self.loss} compares those of a"
                " prompt; set it to ce"
            )
