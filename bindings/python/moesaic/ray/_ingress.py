"""What clients of a cluster talk to: HTTP in, the bytes of a replica out."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from typing import Any, Awaitable, Callable, Mapping

from .._errors import UnavailableError
from . import _affinity
from ._library import load
from ._replica import Request

_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]

# Answers of a model. They are asked of another replica when theirs is lost before its answer has begun.
_ANSWERS = frozenset(
    "/v1/chat/completions /v1/completions /v1/responses /v1/messages /api/chat /api/generate".split()
)
# What any replica says as well as another.
_OTHERS = frozenset(
    "/ /v1/models /v1/messages/count_tokens /tokenize /detokenize /tokenizer_info /version /ready /api/show /api/tags "
    "/api/ps /api/version".split()
)
# Replicas that a request is tried on, should they be lost one after the other.
_TRIES = 4
# Routes that are asked by probes and people do not wait for a replica to come.
_PATIENCE_S = 10.0


class Ingress:
    """An ASGI application, and a deployment of Ray Serve.

    Args:
        replicas: The handle of the replicas.
        max_body: Bytes of the largest body.
    """

    def __init__(self, replicas: Any, max_body: int) -> None:
        self._replicas = replicas
        self._max_body = max_body

    def __serve_build_asgi_app__(self) -> Any:
        """Called by Serve. A function, as uvicorn takes a method for an application of ASGI 2."""

        async def app(scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
            await self._answer(scope, receive, send)

        return app

    async def _answer(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            return await _live(receive, send)
        if scope["type"] != "http":
            return None
        path = scope["path"]
        if path in ("/health", "/live"):
            return await _respond(send, 200, b"", "text/plain")
        if not _is_called_by_its_name(scope):
            return await _fail(send, path, 403, "This host name is not allowed here; call the server localhost or 127.0.0.1.")
        body = await _body(receive, self._max_body)
        if body is None:
            return await _fail(send, path, 413, f"The body is larger than {self._max_body} bytes.")
        query = scope.get("query_string", b"")
        request = Request(
            scope["method"],
            path + ("?" + query.decode("latin-1") if query else ""),
            tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
            body,
            _prompt(body) if path in _ANSWERS and scope["method"] == "POST" else None,
        )
        gone = asyncio.ensure_future(_left(receive))
        try:
            if path == "/v1/moesaic/replicas":
                await self._describe(request, send, gone)
            elif path in _ANSWERS or path in _OTHERS or path.startswith("/v1/models/"):
                await self._relay(request, path, send, gone)
            else:
                text = f"{path} is not served for all replicas together: it would be that of any one of them."
                await _fail(send, path, 404, text)
        finally:
            gone.cancel()
        return None

    async def _relay(self, request: Request, path: str, send: _Send, gone: asyncio.Future[None]) -> None:
        tries = _TRIES if request.prompt is not None or request.method == "GET" else 1
        for attempt in range(1, tries + 1):
            answer = _Answer(self._replicas.options(stream=True).relay.remote(request), gone)
            try:
                head = await answer.next(None if path in _ANSWERS else _PATIENCE_S)
                if head is None:
                    return
                status, headers = head
                raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
                if _is_stream(headers):
                    return await self._stream(answer, status, raw, path, send)
                parts = []
                while (data := await answer.next()) is not None:
                    parts.append(data)
                if gone.done():
                    return
            except _Lost as lost:
                # Nothing of the answer was sent, so that the client sees no more of it than that it took longer.
                if attempt < tries and not lost.timed_out:
                    continue
                return await _fail(send, path, 503, str(lost))
            finally:
                answer.close()
            body = b"".join(parts)
            raw.append((b"content-length", str(len(body)).encode()))
            await send({"type": "http.response.start", "status": status, "headers": raw})
            return await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})

    async def _stream(self, answer: _Answer, status: int, headers: list[tuple[bytes, bytes]], path: str, send: _Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        end = b"\n" if path.startswith("/api/") else b"\n\n"
        rest = b""  # An event that is cut off must not run into the one that says so.
        try:
            while (data := await answer.next()) is not None:
                whole, found, rest = (rest + data).rpartition(end)
                if found:
                    await send({"type": "http.response.body", "body": whole + found, "more_body": True})
        except _Lost as lost:
            # As the server itself tells of a failure in the middle: the status has gone out.
            rest = _last_event(path, str(lost))
        await send({"type": "http.response.body", "body": rest})

    async def _describe(self, request: Request, send: _Send, gone: asyncio.Future[None]) -> None:
        """Of all replicas, for who may ask one of them for its models."""
        path = "/v1/moesaic/replicas"
        answer = _Answer(self._replicas.options(stream=True).relay.remote(Request("GET", "/v1/models", request.headers, b"")), gone)
        try:
            head = await answer.next(_PATIENCE_S)
            if head is None:
                return
            if head[0] != 200:
                return await _fail(send, path, head[0], "This wants a key of the servers.")
            described = await self._replicas.broadcast("describe").results_async(timeout_s=_PATIENCE_S)
        except Exception as error:
            return await _fail(send, path, 503, _why(error))
        finally:
            answer.close()
        await _respond(send, 200, json.dumps({"replicas": described}).encode(), "application/json")


class _Lost(Exception):
    """A replica does not answer any more; the text is for the client."""

    def __init__(self, text: str, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class _Answer:
    """What comes of one replica, for as long as the client stays."""

    def __init__(self, response: Any, gone: asyncio.Future[None]) -> None:
        self._response = response
        self._items = response.__aiter__()
        self._gone = gone
        self._over = False

    async def next(self, patience_s: float | None = None) -> Any:
        """What comes next; None at the end, and when the client has left.

        Raises:
            _Lost: The replica is gone, or nothing came in time.
        """
        item = asyncio.ensure_future(self._items.__anext__())
        try:
            await asyncio.wait({item, self._gone}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not item.done() and not self._gone.done():
                raise _Lost("No replica is ready.", timed_out=True)
        finally:
            if not item.done():
                item.cancel()
        if self._gone.done():
            return None
        try:
            return item.result()
        except StopAsyncIteration:
            self._over = True
            return None
        except Exception as error:
            self._over = True
            raise _Lost(_why(error)) from error

    def close(self) -> None:
        """Ends the request in the replica, unless it has ended."""
        if not self._over:
            self._over = True
            self._response.cancel()


def _why(error: Exception) -> str:
    """For clients."""
    ray = load()
    cause = getattr(error, "cause", None)
    if isinstance(cause, UnavailableError):
        return f"The answer was lost: {cause}."
    if isinstance(error, ray.exceptions.RayActorError):
        return "The answer was lost: the replica that gave it is gone."
    return f"The answer was lost ({type(error).__name__})."


async def _live(receive: _Receive, send: _Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _body(receive: _Receive, most: int) -> bytes | None:
    """None: it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""  # the client has left
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _left(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _prompt(body: bytes) -> _affinity.Prompt:
    """What is no request is refused by the server, whichever that is."""
    try:
        parsed = json.loads(body)
        return _affinity.prompt_of(parsed)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return _affinity.Prompt((), ())


def _is_stream(headers: list[tuple[str, str]]) -> bool:
    kinds = ("text/event-stream", "application/x-ndjson")
    return any(name.lower() == "content-type" and value.lower().startswith(kinds) for name, value in headers)


def _is_called_by_its_name(scope: Mapping[str, Any]) -> bool:
    """A web page must not reach a server on loopback by a name that its owner has made to point there; the servers behind
    cannot see the name any more. Who comes from elsewhere has got past the machine's own address."""
    client = (scope.get("client") or ("", 0))[0]
    if not _is_loopback(client):
        return True
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    name = host[1 : host.find("]")] if host.startswith("[") else host.rsplit(":", 1)[0]
    return name.lower() == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


async def _respond(send: _Send, status: int, body: bytes, kind: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(path: str, kind: str, text: str) -> dict[str, Any]:
    """In the dialect of the route, as the server has it."""
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": "overloaded_error" if kind == "unavailable" else kind, "message": text}}
    if path.startswith("/api/"):
        return {"error": text}
    return {"error": {"message": text, "type": kind, "param": None, "code": kind}}


async def _fail(send: _Send, path: str, status: int, text: str) -> None:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found", 413: "too_large", 503: "unavailable"}
    body = json.dumps(_error(path, kinds.get(status, "error"), text)).encode()
    retry = ((b"retry-after", b"1"),) if status == 503 else ()
    if status == 503 and path.startswith("/v1/messages"):
        status = 529
    await _respond(send, status, body, "application/json", retry)


def _last_event(path: str, text: str) -> bytes:
    """The end of a stream that has broken off."""
    error = _error(path, "unavailable", text)
    if path.startswith("/v1/responses"):
        error = {"type": "error", "code": "server_error", "message": text, "param": None, **error}
    data = json.dumps(error).encode()
    if path.startswith("/api/"):
        return data + b"\n"
    name = b"event: error\n" if path.startswith(("/v1/messages", "/v1/responses")) else b""
    return name + b"data: " + data + b"\n\n"
