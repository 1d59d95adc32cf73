"""Hugging Face's `pipeline`, its model run by jitcl: tokenizers, padding, labels stay theirs.

    python examples/pipeline.py fill-mask FOLDER 'The capital of France is [MASK].'

FOLDER is a model as `save_pretrained` writes it, with its tokenizer.
Wants `pip install 'jitcl[transformers]'`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers

import jitcl.torch  # noqa: F401  the backend "jitcl", where jitcl is not installed by pip


def pipeline(task: str, model: str, device: str = "auto", **options: Any) -> Any:
    """transformers.pipeline(task, model) whose model runs in jitcl. options: of `jitcl.compile`."""
    made = transformers.pipeline(task, model=model, device="cpu")
    made.model.forward = torch.compile(made.model.forward, backend="jitcl", dynamic=True,
                                       options={"device": device, **options})
    return made


if __name__ == "__main__":
    task, folder, *texts = sys.argv[1:]
    predict = pipeline(task, folder)
    for text in texts:
        print(text, "->", predict(text))
