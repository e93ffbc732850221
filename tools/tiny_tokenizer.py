"""The tiny policy's tokenizer: a small byte-level BPE saved as an ordinary Hugging Face fast tokenizer folder.

Every segment after an added token gets a leading blank and all text is lower-cased first, so one word is one id
wherever it stands: in the goal, on the page, or inside `click[...]`. Decoded actions therefore read `click[ red]`; the
environment strips the blank. Any text can be encoded, because unknown words fall back to bytes. Knows nothing of the
model or of demonstrations.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tools.catalog_words import SYLLABLES

EncodeText = Callable[[str], list[int]]
"""Text to ids, no special tokens around them."""

EOS = "<eos>"
PAD = "<pad>"
_ASIN = re.compile(rf"\b(?:{'|'.join(SYLLABLES)})+\b")
# `lstrip` eats the blank before the marker, which would otherwise become a token of its own (" " before "[SEP]").
MARKERS_EATING_BLANKS: tuple[str, ...] = ("[SEP]", "<think>", "</think>", "<action>", "</action>", "search[", "click[")
MARKERS: tuple[str, ...] = ("]", "color:", "size:")
"""`color:` and `size:` are where an option's value is copied from; `]` ends every action."""


def build_tokenizer(corpus: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer.

    Args:
        corpus: texts with the words the policy will meet.
        vocab_size: upper bound of the number of ids, added tokens included; a small corpus ends below it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    added = _added_tokens()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added) - 2,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_markers(corpus), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.add_tokens(added)
    return fast


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: pathlib.Path) -> None:
    """Write the files `AutoTokenizer.from_pretrained(folder)` reads."""
    tokenizer.save_pretrained(str(folder))


def syllable_ids(tokenizer: Any) -> list[int]:
    """[80] ids of the ASIN syllables, in the order of `SYLLABLES`."""
    return [int(tokenizer.convert_tokens_to_ids(syllable)) for syllable in SYLLABLES]


def text_encoder(tokenizer: Any) -> EncodeText:
    """The function that turns a text into ids."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    return encode


def _added_tokens() -> list[AddedToken]:
    eating = [AddedToken(text, normalized=False, special=False, lstrip=True) for text in MARKERS_EATING_BLANKS]
    # color: and size: also eat their blank; they never open a word that needs it.
    plain = [AddedToken(text, normalized=False, special=False, lstrip=text != "]") for text in MARKERS]
    # Upper case only and before lower-casing, so no syllable is ever found inside a word.
    syllables = [AddedToken(text, normalized=False, special=False, lstrip=True) for text in SYLLABLES]
    return [*eating, *plain, *syllables]


def _without_markers(corpus: Iterable[str]) -> Iterable[str]:
    """The corpus cut at the markers, as encoding will cut it; a blank in front as encoding will put it there."""
    markers: Sequence[str] = (*MARKERS_EATING_BLANKS, *MARKERS)
    for text in corpus:
        # ASINs are spelt with added tokens; lower-cased they would fill the vocabulary with names of products.
        pieces = [_ASIN.sub(" ", text)]
        for marker in markers:
            pieces = [part for piece in pieces for part in piece.split(marker)]
        yield from (" " + piece.strip() for piece in pieces if piece.strip())
