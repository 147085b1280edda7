# SPDX-License-Identifier: Apache-2.0
"""What a step reward model starts from: the body of the warm-started policy, with a line break among its tokens.

From random weights a classifier of this size does not learn the 210 facts of the task in a minute, with one label per
input; a language model gets a lesson from every token. A reward model that starts from the supervised policy is the
usual arrangement; PSPO starts from a pretrained BERT.
"""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from prime_ext.utils.files import atomic_path
from recipes.quickstart.respond import load_model
from recipes.quickstart.tokenizer import BOS, EOS, PAD, VOCABULARY

# Between question and steps; and the letter by which the pair encoder finds the tokenizer's frame.
ADDED = ("\n", "a")
# The question, fifteen steps before and the step itself, each with its separator.
MAX_LENGTH = 128


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The policy's tokens with their numbers, and two more; ``<bos>`` stands before a text."""
    names = (*VOCABULARY, *ADDED)
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, names.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, model_max_length=MAX_LENGTH
    )


def write_start(policy: Path, output_dir: Path) -> None:
    """Write body and tokenizer to a folder that ``prime_ext.step_rm.train`` takes as ``model.path``, atomically."""
    tokenizer = build_tokenizer()
    model, _ = load_model(policy)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with atomic_path(output_dir) as temporary:
        model.base_model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    print(f"{output_dir}: the body of {policy}, {model.base_model.num_parameters():,} parameters")
