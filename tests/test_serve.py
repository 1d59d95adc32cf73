"""`jitcl serve`: OpenAI's client and a server on this machine."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

import jitcl
from jitcl.cli.main import cli
from tests import lm_models

openai = pytest.importorskip("openai", reason="OpenAI's client is who asks")
uvicorn = pytest.importorskip("uvicorn", reason="jitcl serve runs on it")
pytest.importorskip("starlette", reason="jitcl serve is written with it")

ROOT = Path(__file__).resolve().parent.parent
MESSAGES = [{"role": "user", "content": "hi"}]


@contextlib.contextmanager
def serving(model: Any, **options: Any) -> Iterator[str]:
    """The address of a server in a thread."""
    with running(model, **options) as (url, _):
        yield url


@contextlib.contextmanager
def running(model: Any, **options: Any) -> Iterator[tuple[str, Any]]:
    from jitcl.lm.server import LOOPBACK, Server

    made = Server(model, **{"name": "tiny", "hosts": LOOPBACK, **options})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(made.app, log_level="error", lifespan="off",
                                               timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", made
        finally:
            server.should_exit = True
            thread.join()
            made.close()
    assert made.clients == 0                    # every place was given back


def client(url: str, key: str = "none", **options: Any) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, **{"max_retries": 0, **options})


def raw(url: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, str]:
    """(status, headers, body) of a request that OpenAI's client would not send."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        said = {"Content-Type": "application/json", **headers}
        connection.request("GET" if body is None else "POST", path, body, said)
        found = connection.getresponse()
        return found.status, found.headers, found.read().decode()


class Pretended:
    """A LanguageModel without kernels: its numbers depend on the last four tokens alone. `gate`:
    steps wait where it is not set."""

    def __init__(self, model: Any) -> None:
        self.gate, self.steps = threading.Event(), 0
        self.gate.set()
        model._run, model._together = self.run, self.together

    def together(self, slots: Sequence[Any], ids: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.run([t], "next", s) for s, t in zip(slots, ids)])

    def run(self, ids: Sequence[int], give: str, past: Any, then: Any = ()) -> np.ndarray:
        self.steps += 1
        assert self.gate.wait(30)
        past.ids += ids
        random = np.random.default_rng(zlib.crc32(bytes(past.ids[-4:])))
        return random.standard_normal((1, 97)).astype(np.float32) * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lm_models.lettered("gpt2", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def pretended(folder: Path) -> Iterator[tuple[Any, Pretended]]:
    with jitcl.lm.load(folder, device="cpu") as model:
        yield model, Pretended(model)


@pytest.fixture
def url(pretended: Any) -> Iterator[str]:
    with serving(pretended[0]) as found:
        yield found


def until(right: Any) -> None:
    deadline = time.monotonic() + 20
    while not right():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_stream_is_the_text_is_what_the_model_says(pretended: Any, url: str) -> None:
    model, _ = pretended
    options = dict(temperature=0.9, top_p=0.95, seed=7, stop=["Q"])
    wanted = model.generate("ab", max_new_tokens=40, **options)
    finish, ids = model.last.finish, model.last.ids
    with client(url) as c:
        made = c.completions.create(model="tiny", prompt="ab", max_tokens=40, **options)
        assert made.choices[0].text == wanted and made.choices[0].finish_reason == finish
        assert made.usage.prompt_tokens == 2 and made.usage.completion_tokens == len(ids)
        events = list(c.completions.create(model="tiny", prompt=model.tokenize("ab"), max_tokens=40,
                                           stream=True, stream_options={"include_usage": True},
                                           **options))
        assert "".join(e.choices[0].text for e in events[:-1]) == wanted
        assert len(events) > 4 and events[-2].choices[0].finish_reason == finish
        assert events[-1].usage.completion_tokens == len(ids)

        wanted = model.generate(MESSAGES, max_new_tokens=30, temperature=0.5, seed=1)
        options = dict(model="tiny", messages=MESSAGES, max_tokens=30, temperature=0.5, seed=1)
        parts = [{"role": "user", "content": [{"type": "text", "text": t} for t in "hi"]}]
        for same in (MESSAGES, parts):
            said = c.chat.completions.create(**{**options, "messages": same}).choices[0].message
            assert said.content == wanted and said.role == "assistant"
        deltas = [e.choices[0].delta for e in c.chat.completions.create(**options, stream=True)]
        assert "".join(d.content for d in deltas) == wanted
        assert [d.role for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
        assert c.completions.create(model="tiny", prompt="ab").usage.completion_tokens <= 16
        assert [m.id for m in c.models.list()] == ["tiny"] == [c.models.retrieve("tiny").id]


def test_json_that_was_asked_for(url: str) -> None:
    schema = {"name": "answer", "schema": {"enum": ["yes", "no"]}}
    for form, right in (({"type": "json_schema", "json_schema": schema}, ["yes", "no"]),
                        ({"type": "json_object"}, None)):
        with client(url) as c:
            made = c.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form,
                                             max_tokens=100).choices[0]
        if right is None:
            assert made.message.content.lstrip()[0] == "{"
        else:
            assert json.loads(made.message.content) in right and made.finish_reason == "stop"


def test_vectors(pretended: Any, url: str) -> None:
    model, pretence = pretended
    wanted = model.embed("ab")
    with client(url) as c:
        for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            made = c.embeddings.create(model="tiny", input=["ab", "b"], **form)
            found = made.data[0].embedding
            if form.get("encoding_format") == "base64":
                found = np.frombuffer(base64.b64decode(found), "<f4")
            np.testing.assert_array_equal(np.array(found, np.float32), wanted)
            assert made.data[1].index == 1 and made.usage.prompt_tokens == 3
        assert len(c.embeddings.create(model="tiny", input=[1, 2]).data) == 1


CHAT, TEXT, VECTORS = "chat/completions", "completions", "embeddings"


@pytest.mark.parametrize(("path", "body", "status", "message"), [
    (CHAT, b"{", 400, "the body is no JSON: Expecting"),
    (CHAT, b"\xff", 400, "the body is no JSON"),
    (CHAT, b"[" * 100_000, 400, "the body is no JSON"),
    (CHAT, b"[1]", 400, "the body is a JSON list, wanted an object"),
    (CHAT, {"messages": MESSAGES, "model": None}, 400, "model: wanted the model's name"),
    (CHAT, {"messages": MESSAGES, "model": "gpt-5"}, 404, "no model 'gpt-5': this server has 'ti"),
    (CHAT, {"messages": "hi"}, 400, "messages: wanted a list of objects"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "wanted a dict with 'role' and 'content'"),
    (CHAT, {"messages": [{"role": "system", "content": "x"}]}, 400, "no system"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
     "this server reads parts of type 'text' only"),
    (CHAT, {"messages": MESSAGES, "tools": [{}]}, 400, "tools: this server can do [] only"),
    (CHAT, {"messages": MESSAGES, "prompt": "a"}, 400, "'prompt': this server knows no such field"),
    (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_schema"}}, 400,
     "response_format: wanted {'type': 'text'}"),
    (CHAT, {"messages": MESSAGES, "response_format": {
        "type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, 400, "form="),
    (CHAT, {"messages": MESSAGES, "stream_options": 1}, 400, "stream_options: wanted an object"),
    (TEXT, {"prompt": "a" * 200}, 400, "the prompt has 200 tokens; the model takes 128"),
    (TEXT, {"prompt": ["a", "b"]}, 400, "prompt: wanted one string, or a list of token ids"),
    (TEXT, {"prompt": [True]}, 400, "prompt: wanted one string"),
    (TEXT, {"prompt": [97]}, 400, "token 0 of the prompt is 97"),
    (TEXT, {"prompt": "\ud800"}, 400, "half of a character"),
    (TEXT, {"prompt": "a", "max_tokens": 129}, 400, "this server writes 128 at most"),
    (TEXT, {"prompt": "a", "max_tokens": "9"}, 400, "wanted a whole number from 1 to"),
    (TEXT, {"prompt": "a", "temperature": float("nan")}, 400, "temperature='nan': wanted a number"),
    (TEXT, {"prompt": "a", "top_p": 0}, 400, "top_p=0: wanted more than 0"),
    (TEXT, {"prompt": "a", "seed": -1}, 400, "wanted a whole number from 0"),
    (TEXT, {"prompt": "a", "stop": ["a" * 257]}, 400, "stop: wanted up to 16 strings"),
    (TEXT, {"prompt": "a", "stream": "yes"}, 400, "stream: wanted true or false"),
    (TEXT, {"prompt": "a", "logprobs": 0}, 400, "logprobs: this server can do False only"),
    (VECTORS, {"input": ["a", {}]}, 400, "input: wanted one string"),
    (VECTORS, {"input": "a", "encoding_format": "hex"}, 400, "wanted 'float' or 'base64'"),
    (VECTORS, {"input": "a" * 200}, 400, "the text has 200 tokens; the model takes 128"),
    (VECTORS, {"input": "a" * 2_000_000}, 413, "the request has more than 1500000 bytes"),
    ("nothing", {}, 404, "Not Found"),
])
def test_wrong_requests(wrong: str, path: str, body: Any, status: int, message: str) -> None:
    if not isinstance(body, bytes):
        body = json.dumps({"model": "tiny", **body}).encode()
    found, _, text = raw(wrong, f"/v1/{path}", body)
    told = json.loads(text)["error"]
    assert found == status and message in told["message"]
    assert told["type"] == "invalid_request_error" and told.keys() >= {"param", "code"}


@pytest.mark.parametrize("prompt", [["ab"], "ab", [[1, 2]], [1, 2]])
def test_a_list_of_one_prompt_is_that_prompt(prompt: Any) -> None:
    from jitcl.lm import requests

    assert requests.asked({"prompt": prompt}, False, 9).prompt in ("ab", [1, 2])


@pytest.fixture(scope="module")
def wrong(folder: Path) -> Iterator[str]:
    with jitcl.lm.load(folder, device="cpu") as model:
        Pretended(model)
        with serving(model, max_body=1_500_000) as found:
            yield found


def test_what_a_web_page_might_send_is_refused(wrong: str) -> None:
    status, _, text = raw(wrong, "/v1/completions", b"{}", **{"Content-Type": "text/plain"})
    assert status == 415 and "wanted 'application/json'" in text
    assert raw(wrong, "/v1/models", Host="evil.example")[0] == 400


@pytest.mark.parametrize("size", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_prompt_that_is_far_too_long(wrong: str, size: int) -> None:
    with client(wrong) as c:
        with pytest.raises(openai.BadRequestError, match=f"the prompt has {size} tokens"):
            c.completions.create(model="tiny", prompt="a" * size)
        assert c.completions.create(model="tiny", prompt="a").choices[0].text


def test_keys(pretended: Any) -> None:
    with serving(pretended[0], keys=["one", "zwei\u20ac"]) as url:
        for key in ("two", "on", "onee", "none"):
            with client(url, key) as c, pytest.raises(openai.AuthenticationError, match="API key"):
                c.completions.create(model="tiny", prompt="a")
        status, headers, _ = raw(url, "/v1/models")
        assert status == 401 and headers["WWW-Authenticate"] == "Bearer"
        assert raw(url, "/health")[::2] == (200, '{"status": "ok"}')
        with client(url, "one") as c:
            assert c.completions.create(model="tiny", prompt="a").choices
        other = "Bearer zwei\u20ac".encode().decode("latin-1")
        assert raw(url, "/v1/models", Authorization=other)[0] == 200


def test_a_client_who_goes_makes_room_for_the_next(pretended: Any, url: str) -> None:
    """One while his text is written, one while he waits."""
    model, pretence = pretended
    model.ends = frozenset()
    wanted = model.generate("next", max_new_tokens=5)
    pretence.steps = 0
    with client(url) as c:
        stream = c.completions.create(model="tiny", prompt="first", max_tokens=100, stream=True)
        events = iter(stream)
        for _ in range(4):
            next(events)
        pretence.gate.clear()
        with pytest.raises(openai.APITimeoutError):
            c.with_options(timeout=0.1).completions.create(model="tiny", prompt="b", max_tokens=100)
        stream.close()
        time.sleep(0.1)                         # the server hears of it while a step is under way
        begun = pretence.steps
        pretence.gate.set()
        made = c.completions.create(model="tiny", prompt="next", max_tokens=5)
        assert made.choices[0].text == wanted
        assert pretence.steps <= begun + 5


def test_more_clients_than_places(pretended: Any) -> None:
    model, pretence = pretended
    model.ends = frozenset()
    pretence.gate.clear()
    with (running(model, max_clients=2) as (url, made), client(url) as c,
          ThreadPoolExecutor(2) as pool):
        def ask() -> Any:
            return c.completions.create(model="tiny", prompt="a", max_tokens=3)

        waiting = [pool.submit(ask) for _ in range(2)]
        try:
            until(lambda: made.clients == 2)
            with pytest.raises(openai.InternalServerError, match="under way or wait") as told:
                ask()
            assert told.value.status_code == 503
            assert int(told.value.response.headers["retry-after"]) >= 1
            assert raw(url, "/health")[0] == 200
        finally:
            pretence.gate.set()
        assert len({w.result().choices[0].text for w in waiting}) == 1


def test_a_slow_reader_holds_nobody_up(pretended: Any, url: str) -> None:
    model, pretence = pretended
    model.ends = frozenset()
    with client(url) as c, c.completions.create(model="tiny", prompt="a", max_tokens=100,
                                                stream=True) as unread:
        assert c.completions.create(model="tiny", prompt="b", max_tokens=3).usage
        until(lambda: pretence.steps == 103)
        assert len(list(unread)) == 102


def test_failures_are_told(pretended: Any, url: str, caplog: pytest.LogCaptureFixture) -> None:
    model, _ = pretended

    with client(url) as c:
        for failure, told in ((jitcl.DeviceError("the device burns"), "the device burns"),
                              (RuntimeError("a secret"), "internal error")):
            model._run = model._together = Mock(side_effect=failure)
            with pytest.raises(openai.InternalServerError, match=told) as found:
                c.completions.create(model="tiny", prompt="a")
            assert "secret" not in str(found.value)
            with pytest.raises(openai.APIError, match=told):
                list(c.completions.create(model="tiny", prompt="a", stream=True))
    assert "a secret" in caplog.text


def test_the_page_runs(pretended: Any, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(),
                          re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block.replace("http://127.0.0.1:8000", url), "serving.md", "exec"), scope)
    assert "CompletionUsage" in capsys.readouterr().out and len(scope["vectors"]) == 2


@pytest.mark.parametrize(("options", "message"), [
    (["--host", "0.0.0.0"], "--host 0.0.0.0: other machines may reach it, and there is no key"),
    (["--api-key", ""], "--api-key: wanted a key that is not empty"),
    (["--api-key-file", os.devnull], "has no key"),
    (["--host", "192.0.2.1", "--api-key", "k"], "cannot listen on 192.0.2.1, port 8000"),
])
def test_wrong_commands(folder: Path, options: list[str], message: str) -> None:
    found = CliRunner().invoke(cli, ["serve", str(folder), "-d", "cpu", *options])
    assert found.exit_code == 1 and message in found.stderr


def test_what_was_done_is_counted(pretended: Any) -> None:
    with serving(pretended[0], keys=["k"]) as url:
        with client(url, "k") as c:
            made = c.completions.create(model="tiny", prompt="ab", max_tokens=5)
            list(c.completions.create(model="tiny", prompt="ab", max_tokens=5, stream=True))
        raw(url, "/v1/completions", b"{", Authorization="Bearer k")
        assert raw(url, "/metrics")[0] == 401
        text = raw(url, "/metrics", Authorization="Bearer k")[2]
    new = 2 * made.usage.completion_tokens
    for line in ('jitcl_requests_total{path="/v1/completions",status="200"} 2.0',
                 'jitcl_requests_total{path="/v1/completions",status="400"} 1.0',
                 'jitcl_requests_total{path="/metrics",status="401"} 1.0',
                 'jitcl_tokens_total{kind="prompt"} 4.0', 'jitcl_tokens_total{kind="reused"} 1.0',
                 f'jitcl_tokens_total{{kind="new"}} {new}.0', "jitcl_clients 0.0"):
        assert line in text.splitlines(), text
    assert re.search(r'jitcl_seconds_total{kind="prefill"} (0\.\d+|\d\.\d+e-)', text)


def test_texts_of_several_clients_are_written_together(pretended: Any) -> None:
    """Two at once; the third joins when one of them has gone."""
    model, pretence = pretended
    model.ends, model.batch = frozenset(), 2
    wanted = [model.generate(p, max_new_tokens=20, temperature=1.0, seed=3) for p in "abc"]
    with running(model) as (url, made), client(url) as c, ThreadPoolExecutor(3) as pool:
        pretence.gate.clear()

        def ask(prompt: str) -> str:
            found = c.completions.create(model="tiny", prompt=prompt, max_tokens=20, seed=3,
                                         temperature=1.0)
            return found.choices[0].text

        asked = []
        try:
            for k, prompt in enumerate("abc"):
                asked.append(pool.submit(ask, prompt))
                until(lambda k=k: made.clients == k + 1)
            until(lambda: len(made.texts.waiting) >= 1)
            text = raw(url, "/metrics")[2]
            assert "jitcl_batch_limit 2.0" in text and "jitcl_clients 3.0" in text
            told = dict(line.split() for line in text.splitlines() if line.startswith("jitcl_")
                        and "{" not in line)
            assert float(told["jitcl_queue"]) >= 1 and float(told["jitcl_batch"]) >= 1
        finally:
            pretence.gate.set()
        assert [a.result() for a in asked] == wanted
        until(lambda: not made.texts.writing)
        assert len(model._cache.slots) == 2
        text = raw(url, "/metrics")[2]
        for line in ("jitcl_batch 0.0", "jitcl_queue 0.0", "jitcl_tokens_per_second 0.0"):
            assert line in text.splitlines(), text


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "prometheus_client"])
def test_a_library_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    found = CliRunner().invoke(cli, ["serve", "folder"])
    assert found.exit_code == 1 and "pip install 'jitcl[serve]'" in found.stderr


# ---- with kernels


@pytest.mark.slow
def test_many_clients_at_once(folder: Path, tmp_path: Path) -> None:
    """Each gets its own text, streamed or not, whatever the others ask for; some go."""
    with jitcl.lm.load(folder, device="cpu", cache_dir=tmp_path) as model:
        model.ends = frozenset()
        prompts = [f"{chr(65 + k)} asks {k}" for k in range(32)]
        options = [dict(max_tokens=20 + k, temperature=0.8, seed=k) for k in range(32)]
        wanted = [model.generate(p, max_new_tokens=o["max_tokens"], temperature=0.8, seed=o["seed"])
                  for p, o in zip(prompts, options)]

        def ask(k: int) -> list[str]:
            found = []
            with client(url) as c:
                for _ in range(3):
                    made = c.completions.create(model="tiny", prompt=prompts[k], **options[k],
                                                stream=k % 2 == 0)
                    found.append("".join(e.choices[0].text for e in made) if k % 2 == 0
                                 else made.choices[0].text)
                    if k % 5 == 0:
                        gone = c.completions.create(model="tiny", prompt=prompts[k], **options[k],
                                                    stream=True)
                        next(iter(gone))
                        gone.close()
            return found

        with serving(model, max_clients=64) as url, ThreadPoolExecutor(32) as pool:
            for k, found in enumerate(pool.map(ask, range(32))):
                assert found == [wanted[k]] * 3


def resident(pid: int) -> int:
    """Bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10    # type: ignore[index]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_thousand_requests_leave_memory_flat(folder: Path, tmp_path: Path) -> None:
    """The command, in a process of its own; Ctrl-C ends it."""
    command = [sys.executable, "-m", "jitcl", "serve", str(folder), "-d", "cpu", "--port", "0",
               "--cache-dir", str(tmp_path), "--name", "tiny", "--api-key", "k"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)/v1",
                              process.stderr.readline())
            assert found is not None

            def ask(k: int) -> int:
                prompt = f"{k} " + "x" * (k % 60)
                made = c.completions.create(model="tiny", prompt=prompt, max_tokens=8, seed=k,
                                            temperature=1, stream=k % 3 == 0)
                return len(list(made)) if k % 3 == 0 else made.usage.total_tokens

            held = []
            with client(found[1], "k", timeout=120) as c, ThreadPoolExecutor(4) as pool:
                for part in range(5):
                    assert all(pool.map(ask, range(250 * part, 250 * part + 250)))
                    held.append(resident(process.pid))
        finally:
            process.send_signal(2)
            assert process.wait(30) == 0
    assert held[-1] < held[0] + (8 << 20), held    # 1,000 requests after the first 250
