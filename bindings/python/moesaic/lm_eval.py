"""lm-evaluation-harness with the engine in the process.

    python -m moesaic.lm_eval --model moesaic --tasks hellaswag \\
        --model_args pretrained=models/sample,expert_memory=25%

is the harness's own command with the model ``moesaic`` registered; in a script,
``import moesaic.lm_eval`` registers it. The model's arguments are those of LLM; every setting of the
engine may be among them. Needs lm-eval (``pip install lm-eval``).
"""

from __future__ import annotations

from typing import Any, Sequence

from lm_eval.api.model import TemplateLM  # type: ignore[import-not-found, unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-not-found, unused-ignore]
from lm_eval.utils import (  # type: ignore[import-not-found, unused-ignore]
    get_rolling_token_windows,
    make_disjoint_window,
)

from ._llm import LLM
from ._outputs import RequestOutput
from ._params import SamplingParams

# Requests of one call of ``generate``: enough to keep any batch full, and few enough that the answers
# of a large task are not all in memory at once.
_GROUP = 512


@register_model("moesaic")  # type: ignore[misc, untyped-decorator, unused-ignore]
class MoesaicLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """A model of the harness (``--model moesaic``) that runs on an LLM of this process.

    Args:
        pretrained: The model, as LLM takes it (also ``model``).
        max_length: Longest sequence in tokens, with one that is generated; longer ones lose their
            beginning. None: the context of the engine.
        max_gen_toks: Longest answer of a task that does not say it.
        add_bos_token: Put the token before each text that the model's tokenizer puts there.
        batch_size, max_batch_size, device: The harness gives them; the engine has its own
            (``max_num_seqs``).
        settings: Of LLM. ``llm`` may be one that is there already, which is then not closed.
    """

    backend = "causal"

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        model: str | None = None,
        llm: LLM | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool = False,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.llm = llm if llm is not None else LLM(pretrained or model, **settings)
        # One less, as in the harness's clients of servers: scoring a text generates a token.
        self.max_length = min(int(max_length or self.llm.max_model_len), self.llm.max_model_len) - 1
        self.max_gen_toks = int(max_gen_toks)
        self.add_bos_token = add_bos_token

    @property
    def tokenizer_name(self) -> str:
        """What the harness keeps cached requests apart by."""
        return self.llm.model

    @property
    def eot_token_id(self) -> int:
        """The end of a text; the beginning where the model has no end."""
        tokens = self.llm.special_tokens
        for name in ("eos", "bos"):
            token = tokens[name]
            if token is not None:
                return token
        raise ValueError(f"{self.llm.model} names neither an end nor a beginning of texts")

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        bos = self.llm.special_tokens["bos"]
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """The tokens of a text, with those around it where ``add_bos_token`` or the caller asks."""
        return self.llm.encode(string, self.add_bos_token if add_special_tokens is None else add_special_tokens)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **ignored: Any
    ) -> list[tuple[float, bool]]:
        """For each (any, context, continuation): the sum of the continuation's log-probabilities, and
        whether each of its tokens is the likeliest."""
        prompts, lengths = [], []
        for _, context, continuation in requests:
            tokens = (list(context) + list(continuation))[-self.max_length :]
            prompts.append(tokens)
            lengths.append(min(len(continuation), len(tokens) - 1))
        params = SamplingParams(
            temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False, ignore_eos=True
        )
        results = []
        for output, length in zip(self._run(prompts, [params] * len(prompts), disable_tqdm), lengths):
            results.append(_score(output, length))
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probabilities of whole texts, in windows of the longest sequence."""
        windows, owners = [], []
        for index, request in enumerate(requests):
            (text,) = request.args
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            for window in rolling:
                context, continuation = make_disjoint_window(window)
                windows.append((None, context, continuation))
                owners.append(index)
        sums = [0.0] * len(requests)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm)):
            sums[owner] += logprob
        for request, logprob in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, logprob)
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts, each up to the first of its stop texts."""
        prompts, params = [], []
        for request in requests:
            text, options = request.args
            prompt, one = self._generation(text, dict(options))
            prompts.append(prompt)
            params.append(one)
        answers = []
        for request, output in zip(requests, self._run(prompts, params, disable_tqdm)):
            answers.append(output.outputs[0].text)
            self.cache_hook.add_partial("generate_until", request.args, answers[-1])
        return answers

    def _generation(self, text: str, options: dict[str, Any]) -> tuple[list[int], SamplingParams]:
        until = options.pop("until", None) or []
        longest = int(options.pop("max_gen_toks", options.pop("max_tokens", self.max_gen_toks)))
        sampled = options.pop("do_sample", False)
        temperature = options.pop("temperature", 0)
        known = {name: options[name] for name in ("top_p", "top_k", "min_p", "seed") if name in options}
        params = SamplingParams(
            temperature=temperature if sampled or temperature else 0,
            max_tokens=longest,
            stop=[until] if isinstance(until, str) else list(until),
            **known,
        )
        room = max(1, self.max_length - longest)
        return self.tok_encode(text)[-room:], params

    def _run(
        self, prompts: list[list[int]], params: list[SamplingParams], quiet: bool
    ) -> list[RequestOutput]:
        from tqdm import tqdm  # type: ignore[import-untyped, import-not-found, unused-ignore]

        outputs: list[RequestOutput] = []
        with tqdm(total=len(prompts), disable=quiet, desc="moesaic") as progress:
            for first in range(0, len(prompts), _GROUP):
                group = self.llm.generate(prompts[first : first + _GROUP], params[first : first + _GROUP])
                outputs += group
                progress.update(len(group))
        return outputs


def _score(output: RequestOutput, length: int) -> tuple[float, bool]:
    """Of the last ``length`` tokens of a prompt."""
    if length == 0:
        return 0.0, True
    total, greedy = 0.0, True
    tokens = output.prompt_token_ids[-length:]
    for token, candidates in zip(tokens, (output.prompt_logprobs or [])[-length:]):
        assert candidates is not None
        own = candidates[token].logprob
        total += own
        greedy &= own >= max(candidate.logprob for candidate in candidates.values())
    return total, greedy


def main() -> None:
    """The harness's command, which then knows this model."""
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-not-found, unused-ignore]

    cli_evaluate()


if __name__ == "__main__":
    main()
