"""SamplingParams: what a request asks for, under vLLM's names."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, fields
from typing import Any, Mapping, Sequence


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0  # all of it so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # there is one output, at the end


@dataclass(kw_only=True)
class SamplingParams:
    """How tokens are chosen, when an answer ends, and what is told about it.

    A sampling field that is None has the model's own default (its generation_config.json), and else
    that of the API (temperature 1). Ranges are those of the server; what is out of range is told by
    ``generate``.

    Args:
        n: Answers to each prompt.
        temperature: 0 takes the likeliest token.
        top_p, top_k, min_p: Which tokens may be chosen at all.
        seed: The same seed gives the same answer; None takes a random one.
        presence_penalty, frequency_penalty, repetition_penalty: Against repetition.
        logit_bias: Added to the logit of a token, by its id; -100 to 100.
        stop: A text, or several (at most 16), before which the answer ends.
        stop_token_ids: Tokens that end the answer.
        include_stop_str_in_output: The text that ended the answer is part of it.
        ignore_eos: Go on after the model has ended its answer.
        max_tokens: Longest answer. None: as much as the context holds.
        min_tokens: Nothing ends the answer before it has so many tokens.
        logprobs: Log-probabilities of each token and of so many of the likeliest (0 to 20).
        prompt_logprobs: The same for the tokens of the prompt.
        detokenize: False: outputs have no text.
        skip_special_tokens: Special tokens are no part of the text.
        structured_outputs: What the answer is held to, of one of these keys: json (a schema, as a
            dict or as text), regex, choice, grammar, json_object, structural_tag.
        output_kind: What each output of a stream holds.
        return_routed_experts: Tell which experts each token was routed to
            (CompletionOutput.routed_experts).
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: Mapping[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    return_routed_experts: bool = False

    def clone(self) -> SamplingParams:
        """A copy that can be changed."""
        return SamplingParams(**{field.name: getattr(self, field.name) for field in fields(self)})

    def _body(self, chat: bool) -> dict[str, Any]:
        """The fields of a request's JSON body."""
        body: dict[str, Any] = {}
        for name in _BODY_FIELDS:
            value = getattr(self, name)
            if value is not None:
                body[name] = value
        if self.logit_bias is not None:
            body["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.logprobs is not None:
            if chat:
                body["logprobs"] = True
                body["top_logprobs"] = self.logprobs
            else:
                body["logprobs"] = self.logprobs
        return body


_BODY_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "prompt_logprobs",
    "skip_special_tokens",
    "structured_outputs",
)


def dump_body(body: Mapping[str, Any]) -> str:
    """As JSON; integers of numpy and the like count as integers."""

    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        if hasattr(value, "__index__"):
            return value.__index__()
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Sequence):
            return list(value)
        raise TypeError(f"a request cannot hold a {type(value).__name__}")

    return json.dumps(body, default=plain, ensure_ascii=False)
