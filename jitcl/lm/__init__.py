"""Language models: `jitcl.lm.load(path)` reads the files that are there, and the `LanguageModel`
that it returns writes, scores and embeds text: docs/language-models.md."""

from jitcl.lm.model import LanguageModel, Score, load
from jitcl.lm.sampling import Sampling
from jitcl.lm.writing import Generation

__all__ = ["Generation", "LanguageModel", "Sampling", "Score", "load"]
