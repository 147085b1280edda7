# SPDX-License-Identifier: Apache-2.0
"""One rank of test_invariance.py: three optimizer steps with every loss.

It writes no checkpoints and exports. Started as ``python offline_rank.py MODEL RESPONSES STEPS
WORK_DIR`` with the variables of a torchrun rank.
"""

from gloo_ranks import finish
from tiny_prm import overrides

from prime_ext.verl_adapter.offline_prm.program import compose, load

SMALL = {"data.val_fraction": 0, "optim.override_optimizer_config": "{eps: 1e-3}"}
RUNS = {
    "ce": {},
    "ce, small passes": {"batching.max_token_len_per_gpu": 64},
    "ce, one pass": {"batching.max_token_len_per_gpu": 4096},
    "dpo": {"prm.loss": "dpo"},
    "kto": {"prm.loss": "kto"},
    "nca": {"prm.loss": "nca"},
    "step_ce": {"prm.loss": "step_ce", "optim.lr": 5e-4},
}


def main(model, responses, steps, work_dir):
    results = {}
    for name, more in RUNS.items():
        data = steps if "step" in name else responses
        config, settings = compose(overrides(model, data, work_dir, **SMALL, **more))
        from prime_ext.verl_adapter.offline_prm.trainer import OfflineTrainer

        trainer = OfflineTrainer(config, settings, *load(settings))
        metrics = [trainer.train_step(groups) for groups in ([0, 1, 2], [3, 4, 5, 6], [0, 1, 2])]
        results[name] = {"metrics": metrics, "weights": trainer.weights()}
    finish(results, work_dir)
