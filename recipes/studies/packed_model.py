# SPDX-License-Identifier: Apache-2.0
"""Passes of a language model that cost less than those of examples/minimal_prime.py.

They replace ``Rollouts`` and ``sample`` there. The numbers are the same but for rounding:

- the tokens of a batch are one list without padding, in which the responses to a prompt share it;
  only attention has rows;
- responses that ended leave the batch while others are sampled;
- keys and values of sampled tokens are written into place, and not repeated for their queries;
- sampling keeps the log-probabilities of its tokens, so that no pass computes them again;
- logits exist for tokens of responses only, and in float32 for 256 tokens at a time;
- layers of a PRM that are not trained are computed once per batch;
- products are in bfloat16 where ``MixedRollouts`` is used; weights, sums over layers,
  normalizations and losses stay in float32.

Models need the layout of Llama: ``embed_tokens``, ``rotary_emb``, ``layers`` and ``norm``.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from examples.minimal_prime import Rollouts, pad_left
from prime_ext.algorithms.distillation import log_probs_and_reverse_kl

NAME = "prime_ext_packed"  # of the attention below, among those of transformers


class Packing(NamedTuple):
    """Places of the tokens ``(N,)`` of a batch in its rows ``(B, L)``; prompts of a group are one.

    ``place_N`` indexes the flattened rows, ``source_BL`` the tokens.
    """

    place_N: torch.Tensor
    position_N: torch.Tensor
    source_BL: torch.Tensor
    allowed_BLL: torch.Tensor


class PackedRollouts(NamedTuple):
    """Rollouts as in examples/minimal_prime.py, whose passes compute the prompt of a group once.

    ``hidden_BLD`` are the outputs of the layers of a PRM that are not trained; passes begin there.
    """

    prompt_BP: torch.Tensor
    prompt_mask_BP: torch.Tensor
    response_BT: torch.Tensor
    mask_BT: torch.Tensor
    outcome_B: torch.Tensor | None = None
    group_B: torch.Tensor | None = None
    old_BT: torch.Tensor | None = None
    reference_BT: torch.Tensor | None = None
    hidden_BLD: torch.Tensor | None = None

    mixed = False
    rows = Rollouts.rows

    def autocast(self) -> torch.autocast:
        """Return the context in which models run."""
        return torch.autocast(self.prompt_BP.device.type, torch.bfloat16, enabled=self.mixed)

    def pack(self) -> Packing:
        """Choose the tokens; the last one of a response predicts nothing and is left out."""
        n_rows, width = self.prompt_BP.shape
        firsts: dict[int, int] = {}
        groups = self.group_B.tolist()
        first_B = torch.tensor([firsts.setdefault(group, row) for row, group in enumerate(groups)])
        row_B1 = torch.arange(n_rows)[:, None]
        input_BT = torch.zeros_like(self.mask_BT)
        input_BT[:, :-1] = self.mask_BT[:, 1:]
        seen_BL = torch.cat([self.prompt_mask_BP, input_BT], 1).cpu()
        position_BL = (seen_BL.cumsum(1) - 1).clamp_min(0)
        length = seen_BL.shape[1]
        owner_BL = row_B1.repeat(1, length)
        owner_BL[:, :width] = first_B[:, None]
        is_token_BL = seen_BL & (owner_BL == row_B1)
        number_M = (is_token_BL.flatten().cumsum(0) - 1).clamp_min(0)
        place_N = is_token_BL.flatten().nonzero()[:, 0]
        source_BL = number_M[owner_BL * length + torch.arange(length)]
        earlier_LL = torch.ones((length, length), dtype=torch.bool).tril()
        packing = (place_N, position_BL.flatten()[place_N], source_BL)
        packing += (earlier_LL & seen_BL[:, None, :],)
        return Packing(*(tensor.to(self.mask_BT.device) for tensor in packing))

    def logits(self, model: Any, cache: "Cache | None" = None) -> torch.Tensor:
        """Return the logits ``(N, V)`` from which the valid tokens of the responses were drawn.

        A cache takes the keys and values of the prompts.
        """
        packing = self.pack()
        layers = model.get_decoder().layers
        with self.autocast():
            if self.hidden_BLD is None:
                hidden_ND = self.embed(model, packing)
            else:
                hidden_ND = self.hidden_BLD.flatten(0, 1)[packing.place_N]
                layers = layers[count_frozen_layers(model) :]
            hidden_ND = run_layers(
                model, layers, hidden_ND, packing.position_N, packing=packing, cache=cache
            )
            # A token is predicted at the token before it.
            source_BT = packing.source_BL[:, self.prompt_BP.shape[1] - 1 : -1]
            return compute_logits(model, hidden_ND[source_BT[self.mask_BT]])

    def log_probs(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities ``(B, T)`` of the response tokens, 0 outside the mask."""
        token_N = self.response_BT[self.mask_BT]
        log_prob_N, _ = log_probs_and_reverse_kl(logits_NV, token_N, [])
        return torch.zeros_like(self.mask_BT, dtype=torch.float32).masked_scatter(
            self.mask_BT, log_prob_N
        )

    def embed(self, model: Any, packing: Packing) -> torch.Tensor:
        """Return the embeddings ``(N, D)`` of the tokens."""
        ids_BL = torch.cat([self.prompt_BP, self.response_BT], 1)
        return model.get_input_embeddings()(ids_BL.flatten()[packing.place_N])

    @torch.no_grad()
    def keep_frozen_layers(self, model: Any) -> "PackedRollouts":
        """Return the rollouts with the outputs of the model's layers that are not trained."""
        packing = self.pack()
        layers = model.get_decoder().layers[: count_frozen_layers(model)]
        with self.autocast():
            hidden_ND = run_layers(
                model, layers, self.embed(model, packing), packing.position_N, packing=packing
            )
        return self._replace(hidden_BLD=hidden_ND[packing.source_BL])


class MixedRollouts(PackedRollouts):
    """Rollouts whose passes multiply in bfloat16."""

    mixed = True


def count_frozen_layers(model: Any) -> int:
    """Return the number of layers before the first that is trained."""
    trained = [
        any(parameter.requires_grad for parameter in layer.parameters())
        for layer in model.get_decoder().layers
    ]
    return trained.index(True)


class Cache:
    """Keys and values of responses that are sampled: ``(R, keys, L, D)`` in float32, per layer.

    ``rows_R`` are the rows of the batch, ``seen_RL`` masks the padding of prompts, and tokens are
    there before ``column``.
    """

    def __init__(self, seen_BL: torch.Tensor, group_B: torch.Tensor, column: int):
        self.rows_R = torch.arange(len(seen_BL), device=seen_BL.device)
        self.seen_RL = seen_BL
        self.group_B = group_B
        self.column = column
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def start_layer(self, *prompts: torch.Tensor) -> None:
        """Add a layer with the keys and values ``(G, keys, L, D)`` of the groups' prompts."""
        layer = []
        for prompt in prompts:
            rows, length = self.seen_RL.shape
            stored = prompt.new_zeros((rows, prompt.shape[1], length, prompt.shape[3]))
            stored[:, :, : self.column] = prompt[self.group_B][:, :, : self.column]
            layer.append(stored)
        self.layers.append((layer[0], layer[1]))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Add the tokens ``(1, heads, R, D)`` at the column; return the values that they attend to.

        The query is scaled already.
        """
        stop = self.column + 1
        for stored, new in zip(self.layers[layer], (key, value), strict=True):
            stored[:, :, self.column] = new[0].transpose(0, 1)
        keys, values = (stored[:, :, :stop] for stored in self.layers[layer])
        query = query[0].transpose(0, 1).reshape(*keys.shape[:2], -1, keys.shape[3])
        score = query @ keys.transpose(2, 3)
        score = score.masked_fill(~self.seen_RL[:, None, None, :stop], -torch.inf)
        return (score.softmax(-1) @ values).flatten(1, 2)[None]

    def keep(self, kept_R: torch.Tensor) -> None:
        """Leave out the other responses."""
        self.rows_R = self.rows_R[kept_R]
        self.seen_RL = self.seen_RL[kept_R]
        self.layers = [(keys[kept_R], values[kept_R]) for keys, values in self.layers]


def run_layers(
    model: Any,
    layers: Iterable[Any],
    hidden_ND: torch.Tensor,
    position_N: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """Return the outputs ``(N, D)`` of consecutive layers; ``options`` are those of ``attend``."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    hidden_1ND = hidden_ND[None]
    rotary = model.get_decoder().rotary_emb(hidden_1ND, position_ids=position_N[None])
    for layer in layers:
        hidden_1ND = layer(hidden_1ND, position_embeddings=rotary, **options)
    model.set_attn_implementation(implementation)
    return hidden_1ND[0]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float = 1.0,
    packing: Packing | None = None,
    cache: Cache | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within rows, in float32; tensors are ``(1, heads, N, D)``, the result ``(1, N, ...)``.

    Without packing, the tokens are the next ones of the responses in the cache. The gradient takes
    a third of the time of that of torch's kernel for CPUs.
    """
    with torch.autocast(query.device.type, enabled=False):
        query = query.float() * scaling
        key = key.float()
        value = value.float()
        if packing is None:
            assert cache is not None
            return cache.attend(module.layer_idx, query, key, value), None
        n_rows, length = packing.source_BL.shape
        n_keys, _, size = key.shape[1:]
        # (B, keys, queries per key * L, D) and (B, keys, L, D).
        query, key, value = (
            tensor[0].transpose(0, 1)[packing.source_BL].transpose(1, 2)
            for tensor in (query, key, value)
        )
        if cache is not None:
            cache.start_layer(key, value)
        query = query.reshape(n_rows, n_keys, -1, size)
        score = (query @ key.transpose(2, 3)).view(n_rows, n_keys, -1, length, length)
        # Finite, as padding sees no token.
        score = score.masked_fill(~packing.allowed_BLL[:, None, None], -1e9)
        mixed = score.softmax(-1).view(n_rows, n_keys, -1, length) @ value
        mixed = mixed.view(n_rows, -1, length, size).transpose(1, 2)
        return mixed.flatten(0, 1)[packing.place_N][None], None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)


@torch.no_grad()
def sample(
    model: Any,
    task: Any,
    problems: Sequence[Any],
    generator: torch.Generator,
    kind: type[PackedRollouts] = PackedRollouts,
) -> PackedRollouts:
    """Sample a response to each problem at temperature 1, with its log-probabilities.

    Responses to one problem follow each other. Each token takes one random number per problem, so
    that a response does not depend on how long the others are.
    """
    prompts = task.prompts(problems)
    prompt_BP, prompt_mask_BP = pad_left(prompts, task.pad, model.device)
    firsts = [row for row, prompt in enumerate(prompts) if not row or prompt != prompts[row - 1]]
    sizes = torch.tensor([*firsts[1:], len(prompts)]) - torch.tensor(firsts)
    group_B = torch.arange(len(firsts)).repeat_interleave(sizes).to(model.device)
    response_BT = prompt_BP.new_full((len(prompts), task.limit), task.pad)
    mask_BT = torch.zeros_like(response_BT, dtype=torch.bool)
    old_BT = torch.zeros(response_BT.shape, device=model.device)
    rollouts = kind(prompt_BP, prompt_mask_BP, response_BT, mask_BT, None, group_B, old_BT)
    # A response of one token, whose logits are those after the prompt.
    one_GT = torch.ones_like(prompt_BP[firsts, :1])
    only_prompts = kind(prompt_BP[firsts], prompt_mask_BP[firsts], one_GT, one_GT.bool())
    only_prompts = only_prompts._replace(group_B=torch.arange(len(firsts)))
    width = prompt_BP.shape[1]
    n_prompt_B = prompt_mask_BP.sum(1)
    cache = Cache(torch.cat([prompt_mask_BP, torch.ones_like(mask_BT)], 1), group_B, width)
    goes_on_R = torch.ones_like(group_B, dtype=torch.bool)
    # In one context of autocast, weights are cast once.
    with rollouts.autocast():
        logits_RV = only_prompts.logits(model, cache)[group_B]
        for t in range(task.limit):
            number_B = torch.rand(len(prompts), generator=generator, device=model.device)
            log_prob_RV = logits_RV.float().log_softmax(-1)
            token_R = invert(log_prob_RV.exp().cumsum(-1), number_B[cache.rows_R])
            rows = cache.rows_R[goes_on_R]
            response_BT[rows, t] = token_R[goes_on_R]
            mask_BT[rows, t] = True
            old_BT[rows, t] = log_prob_RV.gather(1, token_R[:, None])[goes_on_R, 0]
            goes_on_R = goes_on_R & (token_R != task.eos)
            if t + 1 == task.limit or not goes_on_R.any():
                break
            # Copies cost time too, so responses leave when an eighth has ended.
            if goes_on_R.sum() <= 7 / 8 * len(goes_on_R):
                cache.keep(goes_on_R)
                token_R = token_R[goes_on_R]
                goes_on_R = goes_on_R[goes_on_R]
            hidden_RD = run_layers(
                model,
                model.get_decoder().layers,
                model.get_input_embeddings()(token_R),
                n_prompt_B[cache.rows_R] + t,
                cache=cache,
            )
            logits_RV = compute_logits(model, hidden_RD)
            cache.column += 1
    return rollouts


def compute_logits(model: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
    """Return the logits ``(N, V)`` from the outputs of the last layer."""
    return model.get_output_embeddings()(model.get_decoder().norm(hidden_ND))


def invert(cumulative_RV: torch.Tensor, number_R: torch.Tensor) -> torch.Tensor:
    """Return the tokens ``(R,)`` that numbers in [0, 1) draw from cumulative probabilities."""
    # The last sum is 1 but for rounding.
    threshold_R1 = (number_R * cumulative_RV[:, -1])[:, None]
    last = cumulative_RV.shape[1] - 1
    return torch.searchsorted(cumulative_RV, threshold_R1, right=True)[:, 0].clamp_max(last)
