#!/usr/bin/env python3
"""What each kernel takes of a GPU: registers, spills, stack and shared memory, for each architecture.

Compiles kernels/cuda/*.cu once more with the options of a build directory and lets ptxas say it. Fails when a kernel
takes more than a limit below.

    check_gpu_resources.py [BUILD_DIR]    # build/cuda
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Bytes that a thread stores because registers do not hold them. Attention of prompts with heads above 64 has this much,
# most of it once for 64 positions.
MOST_SPILLED = 136
# Of a thread: what the driver sets aside by default. A kernel that needs more makes it take memory at the first launch,
# which waits for all that runs on the GPU.
MOST_STACK = 1024
MOST_SHARED = 48 << 10  # without asking for more

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)", re.DOTALL)
SHARED = re.compile(r"(\d+) bytes smem")


def commands(build):
    """Per source the command that compiles it, without its output and the compiler cache."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"])
        words = shlex.split(entry["command"])
        # Tests compile the same files for the host.
        if path.suffix != ".cu" or "nvcc" not in entry["command"]:
            continue
        if pathlib.Path(words[0]).name == "ccache":
            words = words[1:]
        words[words.index("-o") + 1] = os.devnull
        yield path, words, entry["directory"]


def usage(job):
    path, words, directory = job
    result = subprocess.run([*words, "-Xptxas", "-v"], cwd=directory, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{path} does not compile:\n{result.stdout}")
    for match in ENTRY.finditer(result.stdout):
        shared = SHARED.search(match["rest"])
        yield {"kernel": match["name"], "arch": match["arch"], "registers": int(match["registers"]),
               "stack": int(match["stack"]), "spilled": int(match["stores"]),
               "shared": int(shared[1]) if shared else 0}


def plain_names(names):
    """Demangled, without namespaces and parameters."""
    result = subprocess.run(["c++filt"], input="\n".join(names), text=True, stdout=subprocess.PIPE, check=True)
    for name in result.stdout.splitlines():
        name = re.sub(r"\(moesaic::cuda::\w+\)(\d)", r"\1", name)
        name = name[: name.rfind("(")]
        name = re.sub(r"moesaic::cuda::|\(anonymous namespace\)::|_GLOBAL__N__\w+::|void ", "", name)
        yield re.sub(r"\((?:int|bool)\)", "", name)


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cuda")
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        kernels = [kernel for found in pool.map(lambda job: list(usage(job)), commands(build)) for kernel in found]
    if not kernels:
        print(f"no kernel was found in {build}: is it a build with CUDA?")
        return 1
    for kernel, name in zip(kernels, plain_names([kernel["kernel"] for kernel in kernels])):
        kernel["kernel"] = name
    print(f"{'kernel':32} {'arch':6} registers  spilled    stack   shared")
    problems = []
    for kernel in sorted(kernels, key=lambda kernel: (kernel["kernel"], kernel["arch"])):
        print("{kernel:32} {arch:6} {registers:9} {spilled:8} {stack:8} {shared:8}".format(**kernel))
        for what, most in (("spilled", MOST_SPILLED), ("stack", MOST_STACK), ("shared", MOST_SHARED)):
            if kernel[what] > most:
                problems.append(f"{kernel['kernel']} for {kernel['arch']}: {what} {kernel[what]} bytes, at most {most}")
    print("\n".join(problems) or f"{len(kernels)} kernels are within the limits")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
