"""LLM: requests that one waits for."""

from __future__ import annotations

from typing import Any, Iterator, Sequence, Union

from . import _core
from ._engine import EngineBase, Messages, Prompt, is_one_prompt
from ._errors import InvalidArgumentError
from ._outputs import Gathering, RequestOutput
from ._params import SamplingParams

# How long the core waits before Python looks for signals; it returns at once when there is news.
_WAIT_MS = 100


class LLM(EngineBase):
    """A model and the engine that runs it.

    Args:
        model: A directory, a GGUF file, or the id of a model in the local Hugging Face cache.
        config: A YAML file of settings, or the name of a preset.
        mode: "latency", or "throughput": hundreds of sequences move through the model together while
            experts stream past, for ``generate`` of many prompts.
        workload: What throughput mode is planned for: "prompt=98,gen=64,requests=5000" (tokens of a
            prompt and of an answer, and how many).
        settings: Every setting of the command line under its name there, with ``_`` for ``-``:
            ``expert_memory="25%"``, ``dtype="int4"``, ``preload=False``. A keyword overrules the
            environment (``MOESAIC_...``), that the file.

    Raises:
        Error: With the text that the command would have printed.
    """

    def generate(
        self,
        prompts: Union[Prompt, Sequence[Prompt]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts, as many at a time as the engine runs (``max_num_seqs``).

        Args:
            prompts: A text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``; or a
                list of these.
            sampling_params: For all prompts, or one for each.

        Returns:
            One output for each prompt, in their order.

        Raises:
            Error: Nothing was generated when a prompt is at fault; when the engine fails a request,
                the others are given up, too.
        """
        all_prompts: list[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        params = _for_each(sampling_params, len(all_prompts))
        return self._run(
            [
                self._prepare_prompt(prompt, own, self._next_id(None))
                for prompt, own in zip(all_prompts, params)
            ]
        )

    def chat(
        self,
        messages: Union[Messages, Sequence[Messages]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        response_format: dict[str, Any] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Answers conversations, by the model's chat template.

        Args:
            messages: A conversation in OpenAI's shape (``[{"role", "content"}, ...]``), or several.
            sampling_params: For all, or one for each.
            tools: Functions that may be called, in OpenAI's shape.
            tool_choice: "auto", "none", "required", or a function that must be called.
            response_format: What the answer is held to, in OpenAI's shape.
            chat_template_kwargs: What the template is told besides.
            fields: More fields of a chat completion (reasoning_effort, parallel_tool_calls, ...).

        Returns:
            One output for each conversation. ``outputs[0].text`` is the message's content, ``.message``
            all of it.
        """
        conversations: list[Any] = [messages] if _is_conversation(messages) else list(messages)
        params = _for_each(sampling_params, len(conversations))
        body = {
            **fields,
            "tools": None if tools is None else list(tools),
            "tool_choice": tool_choice,
            "response_format": response_format,
            "chat_template_kwargs": chat_template_kwargs,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        return self._run(
            [
                self._prepare_chat(conversation, own, self._next_id(None), body)
                for conversation, own in zip(conversations, params)
            ]
        )

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Continues one prompt and yields outputs as they come (``SamplingParams.output_kind``). Who
        leaves the loop ends the request."""
        params = sampling_params or SamplingParams()
        prepared, gathering = self._prepare_prompt(prompt, params, self._next_id(None))
        stream = _core.AnswerStream(self._core, -1, False)
        stream.submit([prepared])
        try:
            while not gathering.finished:
                items = stream.take(_WAIT_MS)
                for item in items:
                    gathering.add(item[0], item)
                if gathering.error is not None:
                    raise gathering.error
                if items:
                    yield gathering.output()
        finally:
            stream.abandon(0, len(gathering.outputs))

    def _run(self, requests: list[tuple[Any, Gathering]]) -> list[RequestOutput]:
        if not requests:
            return []
        stream = _core.AnswerStream(self._core, -1, True)
        owners: list[tuple[Gathering, int]] = []
        for _, gathering in requests:
            owners += [(gathering, index) for index in range(len(gathering.outputs))]
        stream.submit([prepared for prepared, _ in requests])
        left = len(requests)
        try:
            while left > 0:
                for item in stream.take(_WAIT_MS):
                    gathering, index = owners[item[0]]
                    gathering.add(index, item)
                    if gathering.error is not None:
                        raise gathering.error
                    left -= gathering.finished
        except BaseException:
            stream.abandon(0, len(owners))
            raise
        return [gathering.final() for _, gathering in requests]


def _for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidArgumentError(f"there are {len(params)} sampling_params for {count} prompts")
    return list(params)


def _is_conversation(messages: Any) -> bool:
    return not messages or isinstance(messages[0], dict)


