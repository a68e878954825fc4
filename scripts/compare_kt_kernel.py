#!/usr/bin/env python3
"""The experts of a layer in moesaic and in KTransformers' CPU operators (kt-kernel on PyPI), as a Markdown table.

    python3 -m venv /tmp/kt && /tmp/kt/bin/pip install numpy && /tmp/kt/bin/pip install --no-deps kt-kernel
    cmake --build --preset release --target experts_bench
    /tmp/kt/bin/python scripts/compare_kt_kernel.py [--bench build/release/bench/experts_bench] [--rounds 3]

kt-kernel is a library of operators, whose engine is SGLang on a GPU: what can be set beside is a layer's experts, from
activations to the weighted sum of each token's experts. Both have 64 experts of hidden 1024 and intermediate 512, top
8, in layers that take turns and are larger than caches; the calls are those of tests/bench/experts_bench.cpp. Programs
run one after the other in each round; cells are medians of the rounds (least..most), of microseconds. kt-kernel's
extension modules, one for each class of CPUs, are loaded by themselves: its Python package wants torch and a GPU's
driver. Its integer weights are those that it makes of bf16, or (RAWINT4) reads: int8 and int4 have a scale for each
output, RAWINT4 one for 32 inputs. "error" is the largest difference from float64 arithmetic on the bf16 weights, over
the largest output.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 64, 8, 1024, 512
BYTES = 1 << 30  # of all layers, at least
CALLS = {"decode, batch 1": 1, "decode, batch 16": 16, "decode, batch 64": 64, "prefill, 512 tokens": 512,
         "prefill, 2048 tokens": 2048}
BITS = {"bf16": 16, "int8": 8, "int4": 4}
# MOESAIC_ISA, type of weights, kt-kernel's module and operator.
PAIRS = [
    ("amx", "bf16", "amx", "AMXBF16_MOE"),
    ("amx", "int8", "amx", "AMXInt8_MOE"),
    ("amx", "int4", "amx", "AMXInt4_MOE"),
    ("amx", "int4", "amx", "AMXInt4_KGroup_MOE"),
    ("avx512", "bf16", "avx512_bf16", "AMXBF16_MOE"),
    ("avx512", "int8", "avx512_vnni", "AMXInt8_MOE"),
    ("avx512", "int4", "avx512_vnni", "AMXInt4_MOE"),
    ("avx2", "bf16", "avx2", "AVX2BF16_MOE"),
    ("avx2", "int4", "avx2", "AVXVNNI256RawInt4_MOE"),
]


def bf16(numpy, values):
    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def floats(numpy, bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


class KtLayers:
    """Layers with the same weights, each with memory of its own."""

    def __init__(self, numpy, variant, operator, weights, threads):
        self.numpy = numpy
        package = pathlib.Path(importlib.util.find_spec("kt_kernel").origin).parent
        file = next(package.glob(f"_kt_kernel_ext_{variant}.*.so"))
        spec = importlib.util.spec_from_file_location("kt_kernel_ext", file)
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        pool = self.module.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [threads]
        self.cpu = self.module.CPUInfer(pool)
        generator = numpy.random.default_rng(1)
        # Gate, up and down of each expert.
        self.weights = [bf16(numpy, generator.standard_normal(shape, dtype=numpy.float32) * 0.03)
                        for shape in 2 * [(EXPERTS, INTERMEDIATE, HIDDEN)] + [(EXPERTS, HIDDEN, INTERMEDIATE)]]
        self.groups = "KGroup" in operator or "RawInt4" in operator
        self.packed = [self.in_groups(matrix) for matrix in self.weights] if self.groups else []
        self.mask = numpy.zeros(EXPERTS, dtype=numpy.uint8)  # none is on a GPU
        self.order = numpy.arange(EXPERTS, dtype=numpy.int64)
        layer_bytes = 3 * EXPERTS * HIDDEN * INTERMEDIATE * BITS[weights] // 8
        self.layers = [self.layer(operator, number) for number in range(1 + BYTES // layer_bytes)]
        self.turn = 0

    def in_groups(self, matrix):
        """Halves of bytes, which stand 8 above their value, and a bf16 scale for 32 inputs of an output."""
        numpy = self.numpy
        values = floats(numpy, matrix).reshape(*matrix.shape[:2], -1, 32)
        scales = bf16(numpy, numpy.abs(values).max(axis=-1) / 7)
        levels = numpy.rint(values / floats(numpy, scales)[..., None]).clip(-8, 7).astype(numpy.int8) + 8
        levels = levels.astype(numpy.uint8).reshape(*matrix.shape[:2], -1, 2)
        return numpy.ascontiguousarray(levels[..., 0] | levels[..., 1] << 4), numpy.ascontiguousarray(scales)

    def layer(self, operator, number):
        config = self.module.moe.MOEConfig(EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, self.mask.ctypes.data)
        config.layer_idx, config.pool, config.max_len = number, self.cpu.backend_, max(CALLS.values())
        if self.groups:
            pointers = [[[one[expert].ctypes.data for expert in range(EXPERTS)]] for pair in self.packed for one in pair]
            (config.gate_projs, config.gate_scales, config.up_projs, config.up_scales, config.down_projs,
             config.down_scales) = pointers
            config.quant_config.bits, config.quant_config.group_size = 4, 32
            config.quant_config.zero_point = False
        else:
            config.gate_proj, config.up_proj, config.down_proj = [matrix.ctypes.data for matrix in self.weights]
        made = getattr(self.module.moe, operator)(config)
        self.cpu.submit(made.load_weights_task(self.order.ctypes.data))
        self.cpu.sync()
        return made

    def call(self, tokens):
        """A function that runs a call, and its operands. Tokens choose their experts in turn, each as many."""
        numpy = self.numpy
        inputs = bf16(numpy, numpy.random.default_rng(2).standard_normal((tokens, HIDDEN), dtype=numpy.float32))
        experts = (numpy.arange(tokens * TOP_K, dtype=numpy.int64) % EXPERTS).reshape(tokens, TOP_K)
        weights = numpy.full((tokens, TOP_K), 1 / TOP_K, dtype=numpy.float32)
        output = numpy.zeros((tokens, HIDDEN), dtype=numpy.uint16)
        count = numpy.array([tokens], dtype=numpy.int32)

        def run():
            if tokens == 1 and self.turn % len(self.layers) == 0:
                experts[:] = (experts + TOP_K) % EXPERTS
            layer = self.layers[self.turn % len(self.layers)]
            self.turn += 1
            self.cpu.submit(layer.forward_task(count.ctypes.data, TOP_K, experts.ctypes.data, weights.ctypes.data,
                                               inputs.ctypes.data, output.ctypes.data, False))
            self.cpu.sync()

        return run, inputs, experts, output

    def error(self):
        numpy = self.numpy
        run, inputs, experts, output = self.call(2)
        run()
        expected = numpy.zeros((2, HIDDEN))
        for token in range(2):
            x = floats(numpy, inputs[token]).astype(numpy.float64)
            for expert in experts[token]:
                gate, up, down = (floats(numpy, matrix[expert]).astype(numpy.float64) for matrix in self.weights)
                g = gate @ x
                expected[token] += down @ (g / (1 + numpy.exp(-g)) * (up @ x)) / TOP_K
        return float(numpy.abs(floats(numpy, output) - expected).max() / numpy.abs(expected).max())


def measure_kt(variant, operator, weights, threads, seconds):
    """In a process of its own, whose extension module prints to standard output: the last line counts."""
    import numpy
    layers = KtLayers(numpy, variant, operator, weights, threads)
    result = {"error": layers.error()}
    for name, tokens in CALLS.items():
        run = layers.call(tokens)[0]
        run()
        times, begin = [], time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begin < seconds:
            before = time.perf_counter()
            run()
            times.append(time.perf_counter() - before)
        result[name] = statistics.median(times) * 1e6
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)


def run(command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{command}\nended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def cell(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f}..{max(values):.0f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bench", default="build/release/bench/experts_bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one call of kt-kernel in a round")
    parser.add_argument("--isa", default="", help="of these alone: amx,avx512,avx2")
    parser.add_argument("--kt", nargs=3, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.kt:
        return measure_kt(*flags.kt, flags.threads, flags.seconds)
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        cpu = set(next(line for line in info if line.startswith("flags")).split())
    needed = {"amx": "amx_int8", "avx512": "avx512_vnni", "avx2": "avx_vnni"}
    pairs = [pair for pair in PAIRS if (not flags.isa or pair[0] in flags.isa.split(",")) and needed[pair[0]] in cpu]
    ours, theirs = {}, {}
    for number in range(flags.rounds):
        for pair in pairs:
            isa, weights, variant, operator = pair
            print(f"round {number + 1}: {' '.join(pair)}", file=sys.stderr, flush=True)
            answer = run([sys.executable, __file__, "--threads", flags.threads, "--seconds", flags.seconds, "--kt",
                          variant, operator, weights])
            for name, value in json.loads(answer.strip().splitlines()[-1]).items():
                theirs.setdefault((pair, name), []).append(value)
            for line in run([flags.bench, 5, flags.threads, weights, "whole"], MOESAIC_ISA=isa).splitlines():
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                if cells[0] == weights and cells[1] in CALLS:
                    ours.setdefault((pair, cells[1]), []).append(float(cells[3]))
    print("| MOESAIC_ISA | weights | kt-kernel: module, operator, error | call | moesaic, us | kt-kernel, us | times |")
    print("|---|---|---|---|---|---|---|")
    for pair in pairs:
        isa, weights, variant, operator = pair
        for name in CALLS:
            mine, other = ours[pair, name], theirs[pair, name]
            ratio = statistics.median(theirs_one / mine_one for mine_one, theirs_one in zip(mine, other))
            print(f"| {isa} | {weights} | {variant}, {operator}, {100 * theirs[pair, 'error'][0]:.1f}% | {name} | "
                  f"{cell(mine)} | {cell(other)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
