# SPDX-License-Identifier: Apache-2.0
"""Write an untrained tiny model that reads any text, to try commands with.

    python -m recipes.tiny_model --output-dir outputs/tiny

It has one token a byte and 123,328 parameters. The quickstart's models are smaller still, but read
only the characters of their task.
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from prime_ext.utils.files import write_atomically
from recipes.command_line import read_options
from recipes.quickstart.small_model import build_model

CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
POSITIONS = 4096


def byte_tokenizer(chat_template: str | None = CHAT) -> PreTrainedTokenizerFast:
    """Build a tokenizer of bytes: it reads every text, and a character may have several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        "<pad>": 0,
        "<eos>": 1,
        **{symbol: number + 2 for number, symbol in enumerate(alphabet)},
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = chat_template
    return fast


def write_model(output_dir: Path, seed: int = 0) -> None:
    """Write model and tokenizer for ``from_pretrained``."""
    tokenizer = byte_tokenizer()
    with write_atomically(output_dir) as temporary:
        build_model(tokenizer, seed, POSITIONS).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


if __name__ == "__main__":
    write_model(**read_options(__doc__, "output-dir", "seed"))
