"""`jitcl serve`: a language model over HTTP, as OpenAI's clients speak it (docs/serving.md).

Texts of several clients are written together, a token of each in a step of the model; others wait
in the order in which they were asked for. A step runs in a thread of its own, so that the server
takes requests, and hears of clients that have gone, at any time; what is written is kept for its
client, who may read as slowly as he likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import time
import uuid
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jitcl.errors import InputError, JitclError, OptionError
from jitcl.lm import requests
from jitcl.lm.model import LanguageModel
from jitcl.lm.requests import Asked, Refused
from jitcl.lm.writing import Generation, Text, step

LOOPBACK = ("127.0.0.1", "localhost")
SHUTDOWN_SECONDS = 5            # that texts under way may still take when the server ends

log = logging.getLogger("jitcl")
Handler = Callable[[Request], Awaitable[Response]]


class Counts:
    """What `/metrics` says, in Prometheus's form."""

    def __init__(self, server: Server) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Answers", "path", "status")
        self.tokens = self._counter("tokens", "Of prompts, of these reused, and new", "kind")
        self.seconds = self._counter("seconds", "Until a first token, and for others", "kind")
        for name, what, value in (
                ("clients", "Requests under way or waiting", lambda: server.clients),
                ("batch", "Texts that are written now", lambda: len(server.texts.writing)),
                ("batch_limit", "Texts at most", lambda: server.model.batch),
                ("queue", "Texts that wait for a place in the batch",
                 lambda: len(server.texts.waiting)),
                ("tokens_per_second", "Of all texts, in the last step", lambda: server.texts.speed),
        ):
            Gauge(f"jitcl_{name}", what, registry=self.registry).set_function(value)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"jitcl_{name}", what, labels, registry=self.registry)

    def text(self, took: Generation) -> None:
        for kind, count in (("prompt", took.prompt_tokens), ("reused", took.reused_tokens),
                            ("new", len(took.ids))):
            self.tokens.labels(kind).inc(count)
        self.seconds.labels("prefill").inc(took.prefill_seconds)
        self.seconds.labels("decode").inc(took.decode_seconds)


class Texts:
    """Who is written now, up to `batch` of the model, and who waits; steps while there is anyone.
    All but the steps is the event loop's."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.speed = model, 0.0
        self.waiting, self.writing = deque[Text](), list[Text]()
        self.device = ThreadPoolExecutor(1, "jitcl-serve")
        self._told: dict[Text, asyncio.Event] = {}
        self._steps: asyncio.Task[None] | None = None

    async def pieces(self, text: Text) -> AsyncGenerator[str, None]:
        """It is let go where its reader is: at the end, or where a client has gone."""
        self.waiting.append(text)
        told = self._told[text] = asyncio.Event()
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._go_on())
        try:
            while True:
                await told.wait()
                told.clear()
                while text.told:
                    yield text.told.pop(0)
                if text.failure is not None:
                    raise text.failure
                if text.ended:
                    return
        finally:
            del self._told[text]
            for held in (self.waiting, self.writing):
                if text in held:
                    held.remove(text)

    async def _go_on(self) -> None:
        while self.waiting or self.writing:
            while self.waiting and len(self.writing) < self.model.batch:
                self.writing.append(self.waiting.popleft())
            texts, begin = [*self.writing], time.perf_counter()
            before = sum(len(t.done.ids) for t in texts)
            await self.run(step, self.model, texts)
            new = sum(len(t.done.ids) for t in texts) - before
            self.speed = new / (time.perf_counter() - begin)
            for text in texts:
                if text in self._told:          # else its client has gone
                    self._told[text].set()
                if text.ended and text in self.writing:
                    self.writing.remove(text)
        self.speed = 0.0

    async def run(self, work: Callable[..., Any], *given: Any) -> Any:
        """Between two steps."""
        return await asyncio.get_running_loop().run_in_executor(self.device, work, *given)


class Server:
    """app: for an ASGI server, in one process.

    keys: one of them is asked for, if there are any. max_clients: requests that are taken at once,
    those under way with them; max_body: bytes of a request; max_new_tokens: of an answer, by
    default as many as the model's context. hosts: names that clients may call this machine by.
    """

    def __init__(self, model: LanguageModel, *, name: str = "", keys: Sequence[str] = (),
                 max_clients: int = 64, max_body: int = 4 << 20, max_new_tokens: int | None = None,
                 hosts: Sequence[str] = ("*",)) -> None:
        self.model = model
        place = Path(model.decoder.weights.place).resolve()
        self.name = name or place.name.removesuffix(".gguf")
        self.max_clients, self.max_body = max_clients, max_body
        self.max_new_tokens = max_new_tokens or model.decoder.context
        self.clients, self.created = 0, int(time.time())
        self._keys = [key.encode() for key in keys]
        self.texts = Texts(model)
        self._seconds = 1.0                     # that the last text took
        self.counts = Counts(self)
        posts: dict[str, Handler] = {
            "/v1/chat/completions": partial(self._text, True),
            "/v1/completions": partial(self._text, False), "/v1/embeddings": self._embeddings}
        self.app = Starlette(
            routes=[Route("/health", self._health),
                    Route("/metrics", self._for_known(self._metrics)),
                    Route("/v1/models", self._for_known(self._models)),
                    Route("/v1/models/{name:path}", self._for_known(self._models)),
                    *(Route(path, self._for_known(handler), methods=["POST"])
                      for path, handler in posts.items())],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
            exception_handlers={HTTPException: _failed})      # no such address, or method

    def close(self) -> None:
        """After the step that is under way. The model stays open."""
        self.texts.device.shutdown(cancel_futures=True)

    # ---- who asks for what

    def _for_known(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            try:
                right = [hmac.compare_digest(given.encode("latin-1"), k) for k in self._keys]
                if right and not any(right):
                    raise Refused(401, "wrong or no API key: send 'Authorization: Bearer KEY'",
                                  code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
                found = await handler(request)
            except Exception as failure:        # noqa: BLE001 - told, and logged
                found = await _failed(request, failure)
            path = request.scope["route"].path
            self.counts.requests.labels(path, found.status_code).inc()
            return found
        return answer

    async def _fields(self, request: Request) -> requests.Fields:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":          # which no page of another site may send unasked
            raise Refused(415, f"content type {kind!r}: wanted 'application/json'")
        body, size = bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if size <= self.max_body:
                body += part
            elif size > 16 * self.max_body:     # until then: clients listen when all is sent
                break
        if size > self.max_body:
            raise Refused(413, f"the request has more than {self.max_body} bytes\n  Shorten it, or "
                               "start the server with a larger --max-body.")
        said = requests.fields(bytes(body))
        if not isinstance(said.get("model"), str):
            raise Refused(400, "model: wanted the model's name, a string", "model")
        self._known_model(said["model"])
        return said

    def _known_model(self, name: str) -> None:
        if name != self.name:
            raise Refused(404, f"there is no model {name[:100]!r}: this server has {self.name!r}",
                          "model", "model_not_found")

    # ---- turns

    async def _place(self, work: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """What `work` says beside the device, in a place of `max_clients`, which `_start` keeps."""
        if self.clients >= self.max_clients:
            raise Refused(503, f"{self.clients} requests are under way or wait: try again later",
                          headers={"Retry-After": str(max(1, round(self._seconds)))})
        self.clients += 1
        try:
            return await asyncio.to_thread(work, *given, **options)
        except BaseException:
            self.clients -= 1
            raise

    def _start(self, request: Request, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """It ends when it is done, or when the client has gone; then its place is free."""
        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            task.cancel()

        def leave(_: Any) -> None:
            self.clients -= 1
            gone.cancel()

        task, gone = asyncio.create_task(work), asyncio.create_task(watch())
        task.add_done_callback(leave)
        return task

    async def _write(self, text: Text, say: Callable[[str], None]) -> Generation:
        begin = time.monotonic()
        try:
            async with contextlib.aclosing(self.texts.pieces(text)) as pieces:
                async for piece in pieces:
                    say(piece)
            return text.done
        finally:
            self.counts.text(text.done)
            self._seconds = time.monotonic() - begin

    # ---- answers

    async def _text(self, chat: bool, request: Request) -> Response:
        said = requests.asked(await self._fields(request), chat, self.max_new_tokens)
        text = await self._place(self.model.text, said.prompt, **said.options)
        head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
                "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()), "model": self.name}
        if said.stream:
            found: asyncio.Queue[str | None] = asyncio.Queue()
            task = self._start(request, self._write(text, found.put_nowait))
            task.add_done_callback(lambda _: found.put_nowait(None))
            return StreamingResponse(_events(head, chat, said, found, task),
                                     media_type="text/event-stream",
                                     headers={"Cache-Control": "no-cache"})
        told: list[str] = []
        took = await _done(self._start(request, self._write(text, told.append)))
        return _json({**head, "choices": [requests.choice(chat, "".join(told), took.finish)],
                      "usage": requests.usage(took)})

    async def _embeddings(self, request: Request) -> Response:
        texts, packed = requests.inputs(await self._fields(request))
        ids = await self._place(lambda: [
            self.model.tokenize(t) if isinstance(t, str) else t for t in texts])

        async def work() -> list[dict[str, Any]]:
            vectors = [await self.texts.run(self.model.embed, part) for part in ids]
            return [requests.embedding(k, v, packed) for k, v in enumerate(vectors)]

        vectors, count = await _done(self._start(request, work())), sum(map(len, ids))
        return _json({"object": "list", "model": self.name, "data": vectors,
                      "usage": {"prompt_tokens": count, "total_tokens": count}})

    async def _models(self, request: Request) -> Response:
        told = {"id": self.name, "object": "model", "created": self.created, "owned_by": "jitcl"}
        if "name" not in request.path_params:
            return _json({"object": "list", "data": [told]})
        self._known_model(request.path_params["name"])
        return _json(told)

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.counts.registry), media_type="text/plain")

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})


async def _events(head: dict[str, Any], chat: bool, said: Asked,
                  found: asyncio.Queue[str | None], task: asyncio.Task[Generation]
                  ) -> AsyncIterator[str]:
    """A text piece by piece, as server-sent events."""
    if chat:
        head = {**head, "object": "chat.completion.chunk"}

    def event(told: Any) -> str:
        return f"data: {json.dumps(told)}\n\n"

    yield event({**head, "choices": [requests.choice(chat, "", None, True)]})
    while (piece := await found.get()) is not None:
        yield event({**head, "choices": [requests.choice(chat, piece, None, False)]})
    try:
        took = await _done(task)
    except Exception as failure:                # noqa: BLE001 - the status has been sent
        yield event(_told(failure)[1])
        return
    yield event({**head, "choices": [requests.choice(chat, "", took.finish, False)]})
    if said.usage:
        yield event({**head, "choices": [], "usage": requests.usage(took)})
    yield "data: [DONE]\n\n"


async def _done(task: asyncio.Task[Any]) -> Any:
    """Raises ClientDisconnect where the client has gone."""
    await asyncio.wait({task})
    if task.cancelled():
        raise ClientDisconnect()
    return task.result()


def _json(told: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(json.dumps(told), status, headers, "application/json")


def _told(failure: Exception) -> tuple[int, dict[str, Any]]:
    """(status, body). What is no error of jitcl's, or of a client, is told in the log alone."""
    if isinstance(failure, Refused):
        return failure.status, requests.error(failure.status, str(failure), failure.param,
                                              failure.code)
    if isinstance(failure, HTTPException):
        return failure.status_code, requests.error(failure.status_code, failure.detail)
    if isinstance(failure, ClientDisconnect):
        return 499, requests.error(499, "the client has gone")
    status = 400 if isinstance(failure, (InputError, OptionError)) else 500
    if status == 500:
        log.error("a request failed", exc_info=failure)
    known = isinstance(failure, JitclError)
    return status, requests.error(status, str(failure) if known else "internal error")


async def _failed(request: Request, failure: Exception) -> Response:
    status, told = _told(failure)
    return _json(told, status, getattr(failure, "headers", None))


def serve(model: LanguageModel, host: str, port: int, say: Callable[[str], None], **options: Any
          ) -> None:
    """Until the process is told to end. port 0: one that is free. say: is told the address.

    Raises OptionError where nobody can listen there.
    """
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as failure:
        raise OptionError(f"cannot listen on {host}, port {port}: {failure}\n"
                          "  Take another --host or --port.") from None
    # a page of another site that has its name lead to this machine is not answered
    hosts = LOOPBACK if host in LOOPBACK else ("*",)
    server = Server(model, hosts=hosts, **options)
    try:
        with listening:
            shown = f"[{host}]" if ":" in host else host
            say(f"serving {server.name} at http://{shown}:{listening.getsockname()[1]}/v1")
            uvicorn.Server(uvicorn.Config(
                server.app, log_level="warning", lifespan="off",
                timeout_graceful_shutdown=SHUTDOWN_SECONDS)).run(sockets=[listening])
    finally:
        server.close()
