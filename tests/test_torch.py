"""PyTorch's modules through torch.compile and from_torch, beside PyTorch itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitcl

torch = pytest.importorskip("torch", reason="torch is what is compared with")
transformers = pytest.importorskip("transformers", reason="its models are compiled")
pytestmark = pytest.mark.slow           # torch.export takes seconds a model

OPTIONS = {"device": "cpu", "strict": True}         # strict: no op on the host
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def models(monkeypatch):
    """The jitcl models that the backend made in a test, of no graph of other tests."""
    import jitcl.torch

    found: list[jitcl.Model] = []
    make = jitcl.torch.open_model

    def noted(*args: Any, **options: Any) -> jitcl.Model:
        found.append(make(*args, **options))
        return found[-1]

    monkeypatch.setattr(jitcl.torch, "open_model", noted)
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield found


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="jitcl", options=OPTIONS | options, dynamic=True)


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def one_model_for_many_shapes(models: list[jitcl.Model]) -> None:
    (model,) = models
    report = model.report()
    assert report.sizes and not report.host and not report.program, str(report)


def resnet18() -> Any:
    config = transformers.ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2],
                                       hidden_sizes=[64, 128, 256, 512])
    module = transformers.ResNetForImageClassification(config)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return module.eval()


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=99)).eval()


def test_resnet_18_takes_batches_of_any_size(models):
    module = resnet18()
    quick = compiled(module)
    for batch in (2, 3, 5, 4):
        x = torch.randn(batch, 3, 64, 64)
        close(quick(x).logits, module(x).logits)
    one_model_for_many_shapes(models)


def test_bert_takes_texts_of_any_length(models):
    module = bert()
    quick = compiled(module)
    for length in (5, 7, 12, 9):
        ids = torch.randint(0, 99, (2, length))
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, 3:] = 0
        close(quick(input_ids=ids, attention_mask=mask).last_hidden_state,
              module(input_ids=ids, attention_mask=mask).last_hidden_state)
    one_model_for_many_shapes(models)


def test_gpt2_goes_on_with_a_growing_cache(models):
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=99, n_positions=64, bos_token_id=0,
        eos_token_id=0)).eval()
    step, ids = compiled(module), torch.randint(0, 99, (1, 6))
    ours, theirs = (module(ids, use_cache=True) for _ in range(2))
    for _ in range(6):
        token = theirs.logits[:, -1:].argmax(-1)
        ours = step(token, past_key_values=ours.past_key_values, use_cache=True)
        theirs = module(token, past_key_values=theirs.past_key_values, use_cache=True)
        close(ours.logits, theirs.logits)
    assert theirs.past_key_values.get_seq_length() == 12
    one_model_for_many_shapes(models)


def test_weights_that_were_written_to_are_read_again(models):
    module = torch.nn.Linear(4, 3)
    quick, x = compiled(module), torch.randn(2, 4)
    close(quick(x), module(x))
    module.weight.mul_(2)
    close(quick(x), module(x))
    close(quick(x), module(x))
    assert len(models) == 2


def test_numbers_are_part_of_what_is_compiled(models):
    """Floats and integers of Python's, results that are given twice or that are None."""
    def scaled(x: Any, by: float, times: int) -> Any:
        y = torch.nn.functional.layer_norm(x * by + times, (4,))
        return y, None, y, x.to(torch.bfloat16)

    quick, x = compiled(scaled), torch.randn(3, 4)
    for by, times in ((1.5, 2), (2.5, 2), (2.5, 7)):
        for got, wanted in zip(quick(x, by, times), scaled(x, by, times), strict=True):
            assert (got is None) == (wanted is None)
            if wanted is not None:
                close(got, wanted)


class Counting(torch.nn.Module):
    """Knows how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return x + self.count


def test_what_is_refused():
    import jitcl.torch

    torch._dynamo.reset()
    module = torch.nn.Linear(4, 3)
    with pytest.raises(Exception, match=r"computes no gradients.*\n.*torch\.no_grad"):
        compiled(module)(torch.randn(2, 4))
    with pytest.raises(jitcl.UnsupportedError, match=r"training mode.*\n.*eval\(\)"):
        jitcl.from_torch(torch.nn.BatchNorm2d(3), (torch.randn(2, 3, 4, 4),))
    with pytest.raises(jitcl.UnsupportedError, match="writes into count"):
        jitcl.from_torch(Counting(), (torch.randn(2, 3),))
    with pytest.raises(jitcl.InputError, match="got a function, wanted a torch.nn.Module"):
        jitcl.from_torch(close)
    with pytest.raises(jitcl.ModelError, match="torch.export can't export"):
        jitcl.from_torch(module, (torch.randn(2, 5),))
    program = torch.export.export(module, (torch.randn(2, 4),))
    with pytest.raises(jitcl.OptionError, match="ExportedProgram has its arguments"):
        jitcl.from_torch(program, (torch.randn(2, 4),))


def test_from_torch(tmp_path):
    module, x = bert(), torch.randint(0, 99, (2, 6))
    length = torch.export.Dim("length", min=2, max=64)
    model = jitcl.from_torch(module, (x,), dynamic_shapes={"input_ids": {1: length}}, device="cpu")
    assert [t.name for t in model.inputs] == ["input_ids"]
    for n in (6, 11, 8):
        ids = torch.randint(0, 99, (2, n))
        with torch.no_grad():
            wanted = module(ids).last_hidden_state.numpy()
        np.testing.assert_allclose(next(iter(model.run({"input_ids": ids}).values())), wanted,
                                   rtol=1e-4, atol=1e-5)
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),))
    model = jitcl.from_torch(program, device="cpu")
    assert [y.shape for y in model(torch.randn(2, 4)).values()] == [(2, 3)]


def test_hugging_faces_pipeline(models, tmp_path, monkeypatch):
    """examples/pipeline.py beside transformers' own."""
    words = "[PAD] [UNK] [CLS] [SEP] the cat sat on a mat good bad film".split()
    library = pytest.importorskip("tokenizers", reason="it writes the model's tokenizer")
    tokenizer = library.Tokenizer(library.models.WordLevel(
        {word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]").save_pretrained(tmp_path)
    transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, initializer_range=0.5)).eval().save_pretrained(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = __import__("pipeline")
    ours = example.pipeline("text-classification", str(tmp_path), **OPTIONS)
    theirs = transformers.pipeline("text-classification", model=str(tmp_path), device="cpu")
    for text in ("the cat sat", "a good film on the mat", "bad film"):
        (got,), (wanted,) = ours(text), theirs(text)
        assert got["label"] == wanted["label"]
        assert got["score"] == pytest.approx(wanted["score"], abs=1e-5)
    one_model_for_many_shapes(models)


def test_the_page_runs():
    """In a process of its own, as a reader would."""
    page = (ROOT / "docs" / "pytorch.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "none on the host" in done.stdout
