# SPDX-License-Identifier: Apache-2.0
"""The PRM's worker on verl's engines over gloo, without Ray and TransferQueue.

Tests run their ``main`` on one and on two ranks and check its results. They import this before
verl: it sets CPU mode, and gives each model its own fused kernels.
"""

import engines  # isort: skip

import torch
import torch.distributed as dist
from engines import build_batch, nested
from verl.utils import tensordict_utils as tu

from prime_ext.prm.fields import (
    LABEL,
    MINI_BATCH_ROWS,
    OFFSET,
    OUTPUT_FIELD,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
)
from prime_ext.prm.implicit_prm import update_options
from prime_ext.prm.mini_batches import plan_mini_batches
from prime_ext.verl_adapter.side_models import share_rows

N_VALID = 14
N_ROWS = 16
BETA = 0.5
LORA = {
    "prm.model.lora_rank": 4,
    "prm.model.lora_alpha": 8,
    "prm.model.target_modules": "all-linear",
}
LORA |= {"prm.reference": "base", "prm.optim.lr": 2e-2}
FSDP1 = {"prm.engine.strategy": "fsdp"}
PACKED = {"prm.model.use_remove_padding": True}
CHUNKED = {"prm.model.use_fused_kernels": True}
ULYSSES = {"prm.engine.ulysses_sequence_parallel_size": "${trainer.n_gpus_per_node}"}  # all ranks
OFFLOAD = {"prm.engine.param_offload": True, "prm.engine.optimizer_offload": True}


def build_rollouts():
    """Build two rollouts for each of seven prompts, and two rows of padding with empty masks."""
    generator = torch.Generator().manual_seed(0)

    def tokens(low, high):
        length = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(2, 40, (length,), generator=generator)

    rollouts = []
    for row in range(N_ROWS):
        padding = row >= N_VALID
        response = tokens(1, 2) if padding else tokens(3, 12)
        mask = torch.full_like(response, 0 if padding else 1)
        if row == 4:
            mask[1] = 0  # a tool's answer
        rollouts.append(
            {
                "key": f"pad{row}_0_0" if padding else f"{row // 2:012d}_{row % 2}_0",
                "padding": padding,
                "prompt": tokens(3, 8),
                "response": response,
                "mask": mask,
                "label": [1.0, 0.0, 0.0, 1.0, 0.25, 1.0][row % 6],
            }
        )
    return rollouts


class Prm:
    """A worker of the real configuration, and the options the trainer would send it."""

    def __init__(self, model_path, overrides=None, role="prm", mini_batch_size=4):
        changes = {
            "actor_rollout_ref.rollout.n": 2,
            "prm.beta": BETA,
            "prm.mini_batch_size": mini_batch_size,
        }
        changes |= {
            "prm.optim.lr": 1e-2,
            "prm.optim.lr_scheduler_type": "cosine",
            "prm.optim.total_training_steps": 10,
        }
        # Smooth where a gradient is rounding noise: AdamW would turn its sign into a full step.
        changes |= {
            "prm.optim.override_optimizer_config": {"eps": 1e-3},
            "prm.micro_batch_size_per_gpu": 2,
        }
        config = engines.configure(model_path, {**changes, **(overrides or {})})
        self.ulysses = config.prm.engine.ulysses_sequence_parallel_size
        self.mini_batch_rows = config.prm.mini_batch_size * config.actor_rollout_ref.rollout.n
        self.epochs = config.prm.epochs
        self.worker = engines.build_worker(config, role)

    def batch(self, rollouts, order, fields, **options):
        """Return this rank's share of the rows, in the order of the plan."""
        share = len(order) * self.ulysses // dist.get_world_size()
        rows = order[share * (place := dist.get_rank() // self.ulysses) : share * (place + 1)]
        picked = [rollouts[row] for row in rows]
        tensors = build_batch(
            *([r[name] for r in picked] for name in ("prompt", "response", "mask"))
        )
        tensors[ROW] = torch.tensor(rows)
        for name, values in fields.items():
            column = [values[row] for row in rows]
            tensors[name] = nested(column) if column[0].dim() else torch.stack(column)
        return tu.get_tensordict(
            tensor_dict=tensors, non_tensor_dict={"pad_mode": "no_padding", **options}
        ), rows

    def score(self, rollouts, as_update=False, **options):
        """Return response log-probabilities of every row, over all ranks, in row order."""
        order = self.plan(rollouts).order if as_update else list(range(len(rollouts)))
        options |= {
            OUTPUT_FIELD: "out",
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": 1.0,
        }
        if as_update:
            options[MINI_BATCH_ROWS] = self.mini_batch_rows
        data, rows = self.batch(rollouts, order, {}, **options)
        output = self.worker.score(data)
        # Of the ranks that share sequences, one has the output.
        return gathered(
            {} if output is None else dict(zip(rows, output["out"].unbind(), strict=True))
        )

    def plan(self, rollouts, replayed=None, mini_batch_rows=None):
        return plan_mini_batches(
            keys=[r["key"] for r in rollouts],
            padding=[r["padding"] for r in rollouts],
            lengths=[len(r["prompt"]) + len(r["response"]) for r in rollouts],
            mini_batch_size=mini_batch_rows or self.mini_batch_rows,
            data_parallel_size=dist.get_world_size() // self.ulysses,
            share_rows=share_rows,
            replayed=replayed,
        )

    def planned(self, rollouts, reference, replayed=None, mini_batch_rows=None):
        plan = self.plan(rollouts, replayed, mini_batch_rows)
        fields = {
            REFERENCE_LOG_PROBS: reference,
            LABEL: [torch.tensor(r["label"]) for r in rollouts],
            WEIGHT: list(plan.weight_B),
            OFFSET: list(torch.zeros(len(rollouts))),
        }
        return self.batch(rollouts, plan.order, fields, **self.update_options(mini_batch_rows))

    def update_options(self, mini_batch_rows=None):
        """Return what the trainer would send with an update."""
        return update_options(mini_batch_rows or self.mini_batch_rows, self.epochs, 1.0)

    def update(self, rollouts, reference, replayed=None, mini_batch_rows=None):
        data, _ = self.planned(rollouts, reference, replayed, mini_batch_rows)
        output = self.worker.train_mini_batch(data)
        return None if output is None else get_metrics(tu.get(output, "metrics"))

    def update_and_score(self, rollouts, reference):
        data, rows = self.planned(rollouts, reference)
        output = self.worker.update_and_score(data)
        scores = gathered(dict(zip(rows, output[PRM_LOG_PROBS].unbind(), strict=True)))
        return get_metrics(self.worker.update_metrics()), scores

    def two_updates(self, rollouts, reference):
        """Return what plain_prm.two_updates returns."""
        updates = [self.update(rollouts, reference) for _ in range(2)]
        return {"updates": updates, "scores": self.score(rollouts), "weights": self.weights()}

    def weights(self):
        weights, _ = self.worker.engine.get_per_tensor_param()
        return {name: tensor.detach().clone() for name, tensor in weights}


def saved_and_restored(prm, folder, *arguments, step=1, **options):
    """Return what was saved, in a fresh :class:`Prm` of these arguments."""
    prm.worker.save_checkpoint(str(folder), global_step=step)
    dist.barrier()
    fresh = Prm(*arguments, **options)
    fresh.worker.load_checkpoint(str(folder))
    return fresh


def get_metrics(metrics):
    return {name: metrics[name] for name in ("loss", "grad_norm", "lr")}


def gathered(of_row):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {row: value.clone() for row, value in of_row.items()})
    merged = {row: value for part in parts for row, value in part.items()}
    return [merged[row] for row in sorted(merged)]
