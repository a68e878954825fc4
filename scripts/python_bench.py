#!/usr/bin/env python3
"""What the Python module costs: decode by LLM.generate beside `moesaic bench` in turn, and the loop's CPU time of a stream.

    PYTHONPATH=build/release/python scripts/python_bench.py [MODEL] [--runs 5] [--batch 1] [--stream-interval 1 8]

The rates are wall clock and want a machine of their own; a stream's is CPU time of the thread that runs the loop, which is
all that a stream costs the process besides the engine's own threads. Beside it stands a loop that is woken likewise and
throws away what it takes: what waking an asyncio loop costs on the machine.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import time

import moesaic
from moesaic import _core
from moesaic import AsyncLLM, LLM, RequestOutputKind, SamplingParams
from moesaic._engine import command

OUTPUT_TOKENS = 128  # as moesaic bench
SAMPLES = 5


def bench_rate(model, batch):
    arguments = [command(), "bench", model, "--prompt-tokens", "0", "--batch", str(batch), "--json"]
    result = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    return next(row["tokens_per_s"] for row in result if row["test"].startswith("tg"))


def generate_rate(llm, batch):
    """Tokens a second of all but each answer's first token: what a call takes with OUTPUT_TOKENS more than one. The median of as
    many samples as `moesaic bench` takes, which counts from the moment in which all sequences have begun."""
    rates = []
    for _ in range(SAMPLES):
        prompts = [[random.randrange(1000) for _ in range(2)] for _ in range(batch)]
        seconds = {}
        for tokens in (1, 1 + OUTPUT_TOKENS):
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
            began = time.perf_counter()
            llm.generate(prompts, params)
            seconds[tokens] = time.perf_counter() - began
        rates.append(batch * OUTPUT_TOKENS / (seconds[1 + OUTPUT_TOKENS] - seconds[1]))
    return statistics.median(rates)


async def wake_cpu_us(model):
    """CPU microseconds of a loop's thread for each token, and tokens for each waking, where a callback takes what the engine has
    and does nothing with it."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=512)
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    wakings = 0

    def on_news():
        nonlocal wakings
        wakings += 1
        if any(item[-1] is not None for item in stream.take(0)):
            ended.set_result(None)

    async with AsyncLLM(model) as llm:
        async for _ in llm.generate("The old man", params):
            pass
        descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        stream = _core.AnswerStream(llm._core, descriptor, False)
        prepared, _ = llm._prepare_prompt("The old man", params, "wake")
        loop.add_reader(descriptor, on_news)
        began = time.thread_time()
        stream.submit([prepared])
        await ended
        spent = time.thread_time() - began
        loop.remove_reader(descriptor)
        del stream
    os.close(descriptor)
    return spent / 512 * 1e6, 512 / wakings


async def stream_cpu_us(model, streams, kind, interval):
    """CPU microseconds of the loop's thread for each token, and tokens for each output."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=512, output_kind=kind)
    outputs = 0

    async def read(llm):
        nonlocal outputs
        async for _ in llm.generate("The old man", params):
            outputs += 1

    async with AsyncLLM(model, stream_interval=interval) as llm:
        await read(llm)
        outputs = 0
        began = time.thread_time()
        await asyncio.gather(*(read(llm) for _ in range(streams)))
        spent = time.thread_time() - began
    return spent / (512 * streams) * 1e6, 512 * streams / outputs


def measure_streams(options):
    cases = {"no stream: a loop that is woken for each token": lambda: wake_cpu_us(options.model)}
    for kind in (RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE):
        for interval in options.stream_interval:
            for streams in (1, 16):
                name = f"stream, {kind.name}, {streams} at once, stream_interval {interval}"
                cases[name] = lambda s=streams, k=kind, i=interval: stream_cpu_us(options.model, s, k, i)
    runs = {name: [] for name in cases}
    for _ in range(options.runs):  # in turn, as machines change
        for name, case in cases.items():
            runs[name].append(asyncio.run(case()))
    for name, results in runs.items():
        us = [result[0] for result in results]
        per_output = statistics.median(result[1] for result in results)
        print(f"{name}: {statistics.median(us):.1f} us of the loop's CPU a token ({min(us):.1f} to {max(us):.1f}), {per_output:.2f} tokens an output")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="models/sample")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--stream-interval", type=int, nargs="+", default=[1], help="tokens that wake the loop")
    parser.add_argument("--only", choices=("streams", "rates"), help="half of it")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    if options.only != "rates":
        measure_streams(options)
    if options.only == "streams":
        return
    pairs = []
    with LLM(options.model) as llm:
        generate_rate(llm, options.batch)
        for _ in range(options.runs):
            pairs.append((generate_rate(llm, options.batch), bench_rate(options.model, options.batch)))
    ours, bench = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    quarters = statistics.quantiles([a / b for a, b in pairs], n=4) if len(pairs) > 1 else [ratio] * 3
    print(f"moesaic {moesaic.__version__}, batch {options.batch}: generate {ours:.1f} tokens/s, moesaic bench {bench:.1f}, ratio {ratio:.3f} (quartiles {quarters[0]:.3f}, {quarters[2]:.3f})")


if __name__ == "__main__":
    main()
