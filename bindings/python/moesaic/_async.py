"""AsyncLLM: requests on an asyncio loop, each an asynchronous iteration over its outputs."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Sequence

from . import _core
from ._engine import EngineBase, Messages, Prompt
from ._errors import UnavailableError
from ._outputs import Gathering, RequestOutput
from ._params import RequestOutputKind, SamplingParams


class _Request:
    """A request and the one task that may wait for news of it. What is here runs once for each token of each request: a
    coroutine or a property less is a microsecond."""

    __slots__ = ("gathering", "first_choice", "has_news", "waiter")

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.first_choice = 0
        self.has_news = False
        self.waiter: asyncio.Future[None] | None = None

    def tell(self) -> None:
        self.has_news = True
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class _Reader:
    """What brings outputs to one loop: the engine writes to one eventfd for all requests, when there
    is something to take, and not once a token of each."""

    def __init__(self, core: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stream: _core.AnswerStream | None = _core.AnswerStream(core, self._descriptor, False)
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
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass
        self._take()

    def _take(self) -> None:
        owners = self._owners
        for item in self._stream.take(0) if self._stream is not None else ():
            number = item[0]
            request = owners.get(number)
            if request is None:
                continue
            request.gathering.add(number - request.first_choice, item)
            if item[-1] is not None:
                del owners[number]
            request.tell()

    def close(self) -> None:
        """After the engine: those who wait are told."""
        if self._stream is None:
            return
        if not self.loop.is_closed():
            self._take()
            self.loop.remove_reader(self._descriptor)
        self._stream = None  # nobody writes to the descriptor from here on
        os.close(self._descriptor)


class AsyncLLM(EngineBase):
    """An engine for asyncio; made as LLM is.

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
        **settings: Any,
    ) -> None:
        super().__init__(model, config=config, mode=mode, workload=workload, **settings)
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
        gathering = request.gathering
        for output in gathering.outputs:
            output.finish_reason = output.finish_reason or "abort"
        gathering.running = 0
        request.tell()

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
        request = _Request(gathering)
        reader = self._reader()
        reader.submit(prepared, request)
        name = gathering.request_id
        self._by_id[name] = (reader, request)
        only_final = params.output_kind is RequestOutputKind.FINAL_ONLY
        new_waiter = reader.loop.create_future
        try:
            while True:
                if not request.has_news:
                    request.waiter = new_waiter()
                    await request.waiter
                    request.waiter = None
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
            reader = self._readers[loop] = _Reader(self._core, loop)
        return reader


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
