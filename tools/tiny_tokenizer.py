"""The tiny policy's tokenizer: a small byte-level BPE of the class Qwen2Tokenizer, saved as a Hugging Face folder.

transformers gives every folder with a Qwen2 model that class, whatever the folder asks for, so its cutting of words is
taken as it is: a word keeps the blank in front of it. Markers (added tokens) eat the blanks on both sides; therefore a
word right after one has no blank wherever it stands, and "red" is one and the same id in `color: red`, in
`[SEP] red [SEP]` and in `click[red]`. Any text can be encoded, because unknown words fall back to bytes. Knows nothing
of the model or of demonstrations.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from tools.catalog_words import SYLLABLES

EncodeText = Callable[[str], list[int]]
"""Text to ids, no special tokens around them."""

EOS = "<eos>"
PAD = "<pad>"
MARKERS: tuple[str, ...] = (
    "[SEP]",
    "</think>",
    "<action>",
    "</action>",
    "search[",
    "click[",
    # Where the description of the product is copied from.
    "Find me",
    # Phrases of the pages that never change; one token each keeps prompts short.
    "Task:",
    "Done:",
    "Actions:",
    ", and price lower than",
    ".00 dollars",
    "(Total results:",
    "Page",
    "Price:",
    "Rating: N.A.",
    "Back to Search",
    "back to search",
    "Next >",
    "next >",
    "< Prev",
    "< prev",
    "Description",
    "description",
    "Features",
    "features",
    "Reviews",
    "reviews",
    "Buy Now",
    "buy now",
    "|",
)
PLAIN_MARKERS: tuple[str, ...] = ("<think>", " color: ", " size: ", "]", ".99", ".95", ".49")
"""They eat no blanks. The two options bring their own, so that a query copied from the instruction keeps them when it
is decoded: without, `with color: black` would be searched as the one word `withcolor:black`."""

_ASIN = re.compile(rf"\b(?:{'|'.join(SYLLABLES)})+\b")


def build_tokenizer(corpus: Iterable[str], vocab_size: int) -> Qwen2Tokenizer:
    """Train the tokenizer.

    Args:
        corpus: texts with the words the policy will meet.
        vocab_size: upper bound of the number of ids, added tokens included; a small corpus ends below it.
    """
    added = _added_tokens()
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added) - 2,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(_cut_at_markers(corpus), trainer)
    trained = json.loads(raw.to_str())["model"]
    merges: Any = [tuple(merge) for merge in trained["merges"]]  # pairs; the annotation of the class says texts
    tokenizer = Qwen2Tokenizer(
        vocab=trained["vocab"],
        merges=merges,
        unk_token=EOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=2048,
    )
    tokenizer.add_tokens(added)
    return tokenizer


def save_tokenizer(tokenizer: Qwen2Tokenizer, folder: pathlib.Path) -> None:
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
    marks = [AddedToken(text, normalized=False, special=False, lstrip=True, rstrip=True) for text in MARKERS]
    # Upper case only, so that no syllable is found inside a word of the catalogue.
    syllables = [AddedToken(text, normalized=False, special=False, lstrip=True) for text in SYLLABLES]
    plain = [AddedToken(text, normalized=False, special=False) for text in PLAIN_MARKERS]
    return [*marks, *plain, *syllables]


def _cut_at_markers(corpus: Iterable[str]) -> Iterable[str]:
    """The pieces between markers, stripped, as encoding will see them."""
    marks = re.compile("|".join(re.escape(text) for text in sorted((*MARKERS, *PLAIN_MARKERS), key=len, reverse=True)))
    for text in corpus:
        # ASINs are spelt with added tokens; as words they would fill the vocabulary with names of products.
        for piece in marks.split(_ASIN.sub("[SEP]", text)):
            if piece.strip():
                yield piece.strip()
