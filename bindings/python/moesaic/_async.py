"""AsyncLLM: requests on an asyncio loop, each an asynchronous iteration over its outputs."""

from __future__ import annotations

import asyncio
import contextvars
import os
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Generator, Sequence

from . import _core
from ._engine import EngineBase, Messages, Prompt
from ._errors import InvalidArgumentError, UnavailableError
from ._outputs import Gathering, RequestOutput
from ._params import RequestOutputKind, SamplingParams


class _News:
    """What a task waits on for news of its request: a future, as tasks know them, that makes its task go on within the
    callback that has the news. asyncio's own would have the loop look at its descriptors once more before."""

    __slots__ = ("_asyncio_future_blocking", "_loop", "_callback", "_context", "_cancelled")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._callback: Callable[[_News], object] | None = None
        self._context: contextvars.Context | None = None
        self._cancelled: asyncio.CancelledError | None = None

    def __await__(self) -> Generator[_News, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, callback: Callable[[_News], object], *, context: contextvars.Context) -> None:
        self._callback = callback
        self._context = context

    def result(self) -> None:
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled

    def cancel(self, msg: object = None) -> bool:
        if self._callback is None:
            return False
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self.tell()
        return True

    def tell(self) -> None:
        """The task goes on when the loop comes to it."""
        callback = self._callback
        if callback is not None:
            self._callback = None
            self._loop.call_soon(callback, self, context=self._context)

    def tell_now(self) -> None:
        """The task goes on before this returns. For callbacks of the loop, which no task runs around."""
        callback = self._callback
        if callback is not None:
            self._callback = None
            self._context.run(callback, self)  # type: ignore[union-attr]


class _Request:
    """A request and the one task that may wait for news of it. What is here runs once for each token of each request: a
    coroutine or a property less is a microsecond."""

    __slots__ = ("gathering", "only_ends", "first_choice", "has_news", "news")

    def __init__(self, gathering: Gathering, only_ends: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.gathering = gathering
        self.only_ends = only_ends
        self.first_choice = 0
        self.has_news = False
        self.news = _News(loop)


class _Reader:
    """What brings outputs to one loop: the engine writes to one eventfd for all requests, when there
    is something to take, and not once a token of each."""

    def __init__(self, core: Any, loop: asyncio.AbstractEventLoop, notice_tokens: int) -> None:
        self.loop = loop
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stream: _core.AnswerStream | None = _core.AnswerStream(core, self._descriptor, False, notice_tokens)
        self._owners: dict[int, _Request] = {}
        loop.add_reader(self._descriptor, self._on_news)

    def submit(self, prepared: Any, request: _Request) -> None:
        choices = len(request.gathering.outputs)
        if self._stream is None:
            raise UnavailableError("the engine is closed")
        request.first_choice = self._stream.submit([prepared])[0]
        for number in range(request.first_choice, request.first_choice + choices):
            self._owners[number] = request

    def abandon(self, request: _Request) -> None:
        choices = len(request.gathering.outputs)
        for number in range(request.first_choice, request.first_choice + choices):
            self._owners.pop(number, None)
        if self._stream is not None:
            self._stream.abandon(request.first_choice, choices)

    def _on_news(self) -> None:
        told = self._take()
        if asyncio.current_task() is not None:  # a loop that is run within a task of its own
            for request in told:
                request.news.tell()
            return
        try:
            for request in told:
                request.news.tell_now()
        except BaseException:  # KeyboardInterrupt, SystemExit: of one task; the loop passes it on
            for request in told:
                request.news.tell()
            raise

    def _take(self) -> list[_Request]:
        """Gathers what has come. Returns whose it is."""
        owners = self._owners
        told = []
        for item in self._stream.take(0) if self._stream is not None else ():
            number = item[0]
            request = owners.get(number)
            if request is None:
                continue
            request.gathering.add(number - request.first_choice, item)
            ends = item[-1] is not None
            if ends:
                del owners[number]
            if not request.has_news and (ends or not request.only_ends):
                request.has_news = True
                told.append(request)
        return told

    def close(self) -> None:
        """After the engine: those who wait are told."""
        if self._stream is None:
            return
        if not self.loop.is_closed():
            for request in self._take():
                request.news.tell()
            self.loop.remove_reader(self._descriptor)
        self._stream = None  # nobody writes to the descriptor from here on
        os.close(self._descriptor)


class AsyncLLM(EngineBase):
    """An engine for asyncio; made as LLM is.

    ``stream_interval`` is vLLM's: how many tokens of a stream wake the loop, but for its first one and
    its end. The default tells each token when it is there; more are fewer and larger outputs, for less
    of the processor's time.

    ``generate`` and ``chat`` may run in any number of tasks at once, of one loop or of several. A
    task that is cancelled, a loop that is left and an iterator that is dropped end their request.

    The engine does not wait for who reads: outputs that are not taken in time are merged into the
    next one, so that a slow reader gets fewer and larger ones, misses nothing, and takes no more
    memory than the answer. When ``max_queue`` requests wait already, another one raises
    UnavailableError.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
        mode: str = "latency",
        workload: str | None = None,
        stream_interval: int = 1,
        **settings: Any,
    ) -> None:
        if stream_interval < 1:
            raise InvalidArgumentError(f"stream_interval: at least 1 token, it is {stream_interval}")
        super().__init__(model, config=config, mode=mode, workload=workload, **settings)
        self._stream_interval = stream_interval
        self._readers: dict[asyncio.AbstractEventLoop, _Reader] = {}
        self._by_id: dict[str, tuple[_Reader, _Request]] = {}

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._core.close)
        self.close()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Continues a prompt (a text, token ids, or a dict with either) and yields outputs as they
        come: all so far, what is new, or one at the end (``SamplingParams.output_kind``)."""
        params = sampling_params or SamplingParams()
        name = self._next_id(request_id)
        return self._run(lambda: self._prepare_prompt(prompt, params, name), params)

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        response_format: dict[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Answers a conversation, as LLM.chat does, and yields outputs as they come."""
        params = sampling_params or SamplingParams()
        name = self._next_id(request_id)
        body = {
            **fields,
            "tools": None if tools is None else list(tools),
            "tool_choice": tool_choice,
            "response_format": response_format,
        }
        return self._run(lambda: self._prepare_chat(messages, params, name, body), params)

    async def abort(self, request_id: str) -> None:
        """Ends a request: its last output has the finish_reason "abort". Unknown ones are ignored."""
        found = self._by_id.get(request_id)
        if found is None:
            return
        reader, request = found
        reader.abandon(request)
        request.gathering.abort()
        request.has_news = True
        request.news.tell()

    def close(self) -> None:
        """Ends what runs (its readers get UnavailableError), and frees memory and threads."""
        super().close()
        readers, self._readers = self._readers, {}
        for loop, reader in readers.items():
            if loop.is_closed() or _running_loop() is loop:
                reader.close()
            else:
                loop.call_soon_threadsafe(reader.close)

    async def _run(
        self, prepare: Callable[[], tuple[Any, Gathering]], params: SamplingParams
    ) -> AsyncIterator[RequestOutput]:
        # Tokenising a long prompt and compiling a grammar take their time.
        prepared, gathering = await asyncio.to_thread(prepare)
        reader = self._reader()
        only_final = params.output_kind is RequestOutputKind.FINAL_ONLY
        request = _Request(gathering, only_final, reader.loop)
        reader.submit(prepared, request)
        name = gathering.request_id
        self._by_id[name] = (reader, request)
        news = request.news
        try:
            while True:
                if not request.has_news:
                    await news
                request.has_news = False
                if gathering.error is not None:
                    raise gathering.error
                finished = gathering.running == 0
                if finished or not only_final:
                    yield gathering.output()
                if finished:
                    return
        finally:
            if self._by_id.get(name, (None, None))[1] is request:
                del self._by_id[name]
            if not gathering.finished:
                reader.abandon(request)

    def _reader(self) -> _Reader:
        loop = asyncio.get_running_loop()
        reader = self._readers.get(loop)
        if reader is None:
            for old in [other for other in self._readers if other.is_closed()]:
                self._readers.pop(old).close()
            reader = self._readers[loop] = _Reader(self._core, loop, self._stream_interval)
        return reader


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
