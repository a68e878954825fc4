#!/usr/bin/env python3
"""Bugs planted in the kernels, which the interpreter must find and say what they are.

Compiles kernels/cuda/*.cu with a bug to PTX and runs the tests of the kernels on it. They are of the kind that no
comparison of results finds where threads run one after another: a missing barrier, lanes that are not together, an
access beside an array. Also runs each file as it is, on which the tests must pass.

    planted_bugs_test.py NVCC gpu_kernels_test_interpreted [NAME...]
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[4]

RACE = "race: thread"

# Name: the file, the tests, what the interpreter must say, and what is replaced by what.
BUGS = {
    "no-barrier-before-chunks-are-added": (
        "products.cu", "CudaProductTest.*", RACE,
        [("    __syncthreads();\n    if (row < kFewRows && rows.begin + row < rows.end) {",
          "    if (row < kFewRows && rows.begin + row < rows.end) {")]),
    "no-barrier-behind-chunks-that-are-added": (
        "products.cu", "CudaProductTest.*", RACE,
        [("        totals[1] += of_chunks[from][row][output + 1];\n      }\n    }\n    __syncthreads();",
          "        totals[1] += of_chunks[from][row][output + 1];\n      }\n    }\n")]),
    "no-barrier-between-halves-of-a-chunk": (
        "products.cu", "CudaProductTest.*", RACE,
        [("      // All have stored this half, and read the other.\n      __syncthreads();", "")]),
    "no-barrier-before-factors-of-a-fold": (
        "attention.cu", "CudaAttentionTest.*", RACE,
        [("      new_factors[thread] = exp2f(maxima[thread] - Shift(max));\n    }\n    __syncthreads();",
          "      new_factors[thread] = exp2f(maxima[thread] - Shift(max));\n    }\n")]),
    "no-barrier-in-a-block-sum": (
        "rows.cu", "CudaRowsTest.*", RACE,
        [("partials[threadIdx.x / kWarp] = value;\n  __syncthreads();", "partials[threadIdx.x / kWarp] = value;\n")]),
    "ranks-are-not-there": (
        "routing.cu", "CudaRoutingTest.*", RACE, [("  Converge();  // ranks are there\n", "")]),
    "groups-are-not-there": (
        "routing.cu", "CudaRoutingTest.*", RACE, [("  }\n  Converge();\n", "  }\n")]),
    "no-barrier-in-the-look-up": (
        "routing.cu", "CudaRoutingTest.*", RACE,
        [("    missing[expert] = count > 0 && here == nullptr ? 1 : 0;\n  }\n  __syncthreads();",
          "    missing[expert] = count > 0 && here == nullptr ? 1 : 0;\n  }\n")]),
    "no-barrier-in-a-vector-product": (
        "products.cu", "CudaProductTest.*", RACE,
        [("partials[warp][quarter * 4 + o] = sum[o];\n  }\n  __syncthreads();",
          "partials[warp][quarter * 4 + o] = sum[o];\n  }\n")]),
    "no-barrier-before-rows-are-written": (
        "unpack.cu", "CudaUnpackTest.*", RACE, [("  }\n  __syncthreads();\n", "  }\n")]),
    "a-matrix-product-of-some-lanes": (
        "attention.cu", "CudaAttentionTest.*", "an instruction of the whole warp, but thread",
        [("    const int key_block = first /",
          "    if (g == 7 && first % 64 == 32) return;\n    const int key_block = first /")]),
    "a-shared-array-too-small": (
        "products.cu", "CudaProductTest.*", "of shared memory, which has",
        [("__shared__ float of_chunks[kBlockWarps][kFewRows][kFewStride];",
          "__shared__ float of_chunks[kBlockWarps][kFewRows][kFewStride - 8];"),
         ("&of_chunks[warp][g + half * 8][8 * t];",
          "&(&of_chunks[0][0][0])[(warp * kFewRows + g + half * 8) * kFewStride + 8 * t];"),
         ("of_chunks[from][row][output];", "(&of_chunks[0][0][0])[(from * kFewRows + row) * kFewStride + output];"),
         ("of_chunks[from][row][output + 1];",
          "(&of_chunks[0][0][0])[(from * kFewRows + row) * kFewStride + output + 1];")]),
    "lanes-end-before-a-shuffle": (
        "rows.cu", "CudaRowsTest.*", "which has ended",
        [("  for (int mask = kWarp / 2; mask > 0; mask /= 2) {\n    const float other = ShuffleXor(value, mask);",
          "  if (index < 0 && threadIdx.x > 0) return;\n"
          "  for (int mask = kWarp / 2; mask > 0; mask /= 2) {\n    const float other = ShuffleXor(value, mask);")]),
    "two-blocks-write-one-place": (
        "attention.cu", "CudaAttentionTest.*", "of another block",
        [("((sequence * args.cache.kv_heads + kv_head) * Chunks(args.max_context) + chunk) * queries +",
          "((sequence * args.cache.kv_heads + kv_head) + chunk) * queries +")]),
    "beside-a-buffer": (
        "rows.cu", "CudaRowsTest.*Rope*", "after the beginning of a buffer of",
        [("  if (i >= args.heads * half) return;", "  if (i >= args.heads * half + 256) return;")]),
    "half-a-vector-off": (
        "products.cu", "CudaProductTest.*", "is not aligned to 16 bytes",
        [("const uint4 v = LoadConstant(line + quarter * 16);", "const uint4 v = LoadConstant(line + quarter * 16 + 8);")]),
}
# Where a bug lies in a header of the kernels instead.
HEADERS = {"half-a-vector-off": "internal/weights.cuh"}


def compile_ptx(nvcc, directory, name):
    subprocess.run(
        [nvcc, "-std=c++17", "-O3", "-arch=compute_90", "-ptx", "--expt-relaxed-constexpr", "--fmad=false",
         f"-I{directory}", f"-I{ROOT}", str(directory / "kernels/cuda" / name), "-o", str(directory / "kernels.ptx")],
        check=True)


def run_tests(program, directory, tests):
    environment = dict(os.environ, MOESAIC_PTX=f"kernels={directory}/kernels.ptx")
    return subprocess.run([program, f"--gtest_filter={tests}"], env=environment, text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)


def check(nvcc, program, bug, file, tests, wanted, replacements):
    """None, or what is wrong."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        edited = HEADERS.get(bug, file)
        text = (ROOT / "kernels/cuda" / edited).read_text(encoding="utf-8")
        for old, new in replacements:
            if text.count(old) < 1:
                return f"{edited} has changed: it has no longer\n{old}\nwhich this bug replaces"
            text = text.replace(old, new, 1)
        for name in {edited, file}:
            target = directory / "kernels/cuda" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text if name == edited else (ROOT / "kernels/cuda" / name).read_text(encoding="utf-8"),
                              encoding="utf-8")
        compile_ptx(nvcc, directory, file)
        result = run_tests(program, directory, tests)
        if wanted is None:
            return None if result.returncode == 0 else f"the tests fail without a bug:\n{result.stdout[-2000:]}"
        if result.returncode == 0:
            return "the tests pass"
        defects = [line for line in result.stdout.splitlines() if "DEFECT" in line]
        if not any(wanted in line for line in defects):
            return f"no defect says '{wanted}':\n" + "\n".join(defects[:3])
        return None


def main():
    nvcc, program, *names = sys.argv[1:]
    jobs = {name: bug for name, bug in BUGS.items() if not names or name in names}
    for file in sorted({bug[0] for bug in jobs.values()}):
        jobs[f"{file} as it is"] = (file, next(bug[1] for bug in jobs.values() if bug[0] == file), None, [])
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        futures = {name: pool.submit(check, nvcc, program, name, *job) for name, job in jobs.items()}
        for name, future in futures.items():
            problem = future.result()
            print(f"{name}: {problem or 'found' if jobs[name][2] else problem or 'nothing found'}", flush=True)
            failed += problem is not None
    print(f"{len(jobs) - failed} of {len(jobs)} as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
