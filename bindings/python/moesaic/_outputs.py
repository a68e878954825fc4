"""RequestOutput and CompletionOutput, in vLLM's shapes, and what gathers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from ._params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from . import _core


@dataclass(slots=True)
class Logprob:
    """Of one token at one position: its natural log-probability, its rank among all tokens (1 is the
    likeliest; None where it is below those that were asked for), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: Which of the prompt's answers it is.
        text: Its text; of a chat, the message's content.
        token_ids: Its tokens.
        cumulative_logprob: Sum over its tokens; None without log-probabilities.
        logprobs: For each token those that were asked for, by token id.
        finish_reason: "stop", "length", of a chat also "tool_calls"; None while it runs.
        stop_reason: The stop text that ended it; None where nothing did.
        reasoning: Of a chat: what the model thought before it answered, or None.
        tool_calls: Of a chat: calls in OpenAI's shape.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    _trace: _core.RequestTrace | None = None
    _routed: npt.NDArray[np.int16] | None = None

    def finished(self) -> bool:
        """Nothing more comes."""
        return self.finish_reason is not None

    @property
    def message(self) -> dict[str, Any]:
        """Of a chat: the assistant's message in OpenAI's shape, which the next request may have."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
            if not self.text:
                message["content"] = None
        return message

    @property
    def eam(self) -> npt.NDArray[np.uint32]:
        """How many tokens each expert was used by, prompt and answer together: uint32 [layers,
        experts]. Tokens of the prompt that came from the prefix cache, and the last token of the
        answer, were not run. Raises ValueError while the answer runs."""
        return self.prefill_eam + self.decode_eam

    @property
    def prefill_eam(self) -> npt.NDArray[np.uint32]:
        """That of the prompt's tokens: uint32 [layers, experts], read-only, on the engine's memory."""
        return self._finished_trace().prefill

    @property
    def decode_eam(self) -> npt.NDArray[np.uint32]:
        """That of the answer's tokens: uint32 [layers, experts], read-only, on the engine's memory."""
        return self._finished_trace().decode

    @property
    def routed_experts(self) -> npt.NDArray[np.int16] | None:
        """Which experts each token was routed to: int16 [tokens, layers, top_k], read-only, on the
        engine's memory; prompt and answer but for the answer's last token, which was not run. -1
        for tokens that came from the prefix cache and for layers without experts. None unless
        ``SamplingParams.return_routed_experts`` asked for it, and while the answer runs."""
        return self._routed

    def _finished_trace(self) -> _core.RequestTrace:
        if self._trace is None:
            raise ValueError("experts are counted when an answer has ended, and a step has run it")
        return self._trace


@dataclass(slots=True)
class RequestOutput:
    """A prompt with its answers.

    Attributes:
        request_id: As it was given, or a number.
        prompt: The prompt's text; None where token ids were given.
        prompt_token_ids: Its tokens; of a chat, through the model's template.
        prompt_logprobs: For each of them; None for the first one, and where they were not asked for.
        outputs: Its answers, ``SamplingParams.n`` of them.
        finished: All of them have ended.
        num_cached_tokens: Tokens of the prompt that came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0


class Gathering:
    """A request that runs: what has come of it, and what of that has not been told."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        choices: int,
        params: SamplingParams,
        token_text: Callable[[int], str],
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.error: BaseException | None = None
        self.outputs = [self._new_output(index) for index in range(choices)]
        self.running = choices
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.num_cached_tokens = 0
        self._token_text = token_text
        self._delta = params.output_kind is RequestOutputKind.DELTA
        # Most steps of most streams bring a text and its token and no more: kept as it came while `outputs` is empty,
        # it becomes an output without one that is made to be added to.
        self._plain = self._delta and choices == 1 and params.logprobs is None and params.detokenize
        self._only: tuple[str, list[int]] | None = None
        self._empty = True

    def _new_output(self, index: int) -> CompletionOutput:
        output = CompletionOutput(index)
        if self.params.logprobs is not None:
            output.logprobs = []
            output.cumulative_logprob = 0.0
        return output

    @property
    def finished(self) -> bool:
        return self.running == 0

    def add(self, index: int, item: tuple[Any, ...]) -> None:
        """What the core's AnswerStream.take has told of a choice."""
        _, text, token_ids, logprobs, prompt_logprobs, events, end = item
        if self._plain:
            if self._empty and end is None and events is None and prompt_logprobs is None:
                self._empty = False
                self._only = (text, token_ids)
                return
            self._add_only()
        output = self.outputs[index]
        output.token_ids += token_ids
        if events is not None:
            self._add_events(output, events)
        elif self.params.detokenize:
            output.text += text
        if output.logprobs is not None and logprobs:
            for token in logprobs:
                output.logprobs.append(self._logprobs_of(token))
                output.cumulative_logprob = (output.cumulative_logprob or 0.0) + token[1]
        if prompt_logprobs:
            self.prompt_logprobs = [None, *map(self._logprobs_of, prompt_logprobs)]
        if end is not None:
            self._end(output, end)

    def _add_only(self) -> None:
        self._empty = False
        if self._only is not None:
            self.outputs[0].text, self.outputs[0].token_ids = self._only
            self._only = None

    def abort(self) -> None:
        """Nothing more is added: answers that have not ended have ended so."""
        self._add_only()
        for output in self.outputs:
            output.finish_reason = output.finish_reason or "abort"
        self.running = 0

    def _end(self, output: CompletionOutput, end: tuple[Any, ...]) -> None:
        finish_reason, stop_text, cached_tokens, output._trace, output._routed, error = end
        self.running -= 1
        output.finish_reason = finish_reason or "error"
        output.stop_reason = stop_text or None
        self.num_cached_tokens = max(self.num_cached_tokens, cached_tokens)
        if error is not None:
            self.error = error
        elif finish_reason == "cancelled":
            from ._errors import UnavailableError

            self.error = UnavailableError("the engine was closed while the request ran")

    def _add_events(self, output: CompletionOutput, events: list[tuple[str, str, str, int]]) -> None:
        for kind, text, call_id, call in events:
            if kind == "content":
                output.text += text
            elif kind == "reasoning":
                output.reasoning = (output.reasoning or "") + text
            elif kind == "call":
                function = {"name": text, "arguments": ""}
                output.tool_calls.append({"index": call, "id": call_id, "type": "function", "function": function})
            elif kind == "arguments":
                self._call(output, call)["function"]["arguments"] += text

    def _call(self, output: CompletionOutput, index: int) -> dict[str, Any]:
        if not output.tool_calls or output.tool_calls[-1]["index"] != index:
            # More of a call whose beginning was told before.
            output.tool_calls.append({"index": index, "function": {"arguments": ""}})
        return output.tool_calls[-1]

    def _logprobs_of(self, token: tuple[int, float, list[tuple[int, float]]]) -> dict[int, Logprob]:
        chosen, logprob, top = token
        result = {
            other: Logprob(value, rank, self._token_text(other)) for rank, (other, value) in enumerate(top, start=1)
        }
        if chosen not in result:
            result = {chosen: Logprob(logprob, None, self._token_text(chosen)), **result}
        return result

    def output(self) -> RequestOutput:
        """As the request wants it told: all so far, or what is new since the last call."""
        if self._only is not None:
            (text, token_ids), self._only = self._only, None
            self._empty = True
            return RequestOutput(
                self.request_id,
                self.prompt,
                self.prompt_token_ids,
                [CompletionOutput(0, text, token_ids)],
                self.running == 0,
                self.prompt_logprobs,
                self.num_cached_tokens,
            )
        outputs = self.outputs
        if self._delta:
            self._empty = True
            self.outputs = [self._new_output(output.index) for output in outputs]
            if len(outputs) > 1:
                outputs = [output for output in outputs if output.token_ids or output.text or output.finished()] or outputs
        else:
            outputs = [_copy(output) for output in outputs]
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            outputs,
            self.running == 0,
            self.prompt_logprobs,
            self.num_cached_tokens,
        )

    def final(self) -> RequestOutput:
        """All of it, for who waits for the end."""
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            self.outputs,
            True,
            self.prompt_logprobs,
            self.num_cached_tokens,
        )


def _copy(output: CompletionOutput) -> CompletionOutput:
    return CompletionOutput(
        output.index,
        output.text,
        output.token_ids.copy(),
        output.cumulative_logprob,
        None if output.logprobs is None else output.logprobs.copy(),
        output.finish_reason,
        output.stop_reason,
        output.reasoning,
        [{**call, "function": dict(call["function"])} for call in output.tool_calls] if output.tool_calls else [],
        output._trace,
        output._routed,
    )
