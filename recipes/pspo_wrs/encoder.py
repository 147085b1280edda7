# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
r"""A tiny BERT with random weights and a tokenizer of single characters, to train a step reward model from nothing.

python -m recipes.pspo_wrs.encoder --output-dir outputs/pspo_quickstart/encoder
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from prime_ext.files import atomic_path

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
# The letter is what the pair encoder finds the tokenizer's frame with; chains have none.
CHARACTERS = (*"0123456789+-*=;?}\n", "\\boxed{", "a")
POSITIONS = 192


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character and one for ``\\boxed{``; ``[CLS] a [SEP]``, and ``[CLS] a [SEP] b [SEP]`` for pairs."""
    names = (PAD, UNKNOWN, BEGIN, END, *CHARACTERS)
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} $B:1 {END}:1",
        special_tokens=[(name, names.index(name)) for name in (BEGIN, END)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=BEGIN,
        sep_token=END,
        model_max_length=POSITIONS,
    )


def write_encoder(output_dir: Path, seed: int = 0, width: int = 64, layers: int = 2) -> None:
    """Write model and tokenizer to a folder, atomically."""
    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        initializer_range=0.08,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertModel(config)
    with atomic_path(output_dir) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    print(f"{output_dir}: {model.num_parameters():,} parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    write_encoder(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
