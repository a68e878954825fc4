#!/usr/bin/env python3
"""Writes large seeds for fuzz_json_text: make_json_seeds.py DIRECTORY [--mib 16].

libFuzzer makes large inputs of large seeds only: from the committed corpus, whose files are small, it gets to a few
hundred bytes in a thousand runs, whatever -max_len says. docs/testing.md has the command.
"""

import argparse
import pathlib


def repeat(size, item, open_="[", close="]"):
    """`item` or item(i), with commas between them, to just below `size` bytes in all."""
    make = item if callable(item) else lambda _: item
    parts, length, i = [], len(open_) + len(close), 0
    while True:
        part = make(i)
        length += len(part) + 1
        if length > size and parts:
            return open_ + ",".join(parts) + close
        parts.append(part)
        i += 1


def string(size, content):
    return '"' + content * ((size - 2) // len(content.encode())) + '"'


def keys(count, prefix="", value="0"):
    return "{" + ",".join(f'"{prefix}{i}":{value}' for i in range(count)) + "}"


def nested(depth, open_="[", close="]", core=""):
    return open_ * depth + core + close * depth


def in_member(shape):
    """As the unknown member of a request."""
    return lambda size: '{"prompt":"a","zz":' + shape(size - 24) + "}"


VALID = {
    "text": lambda n: string(n, "a"),
    "text_of_two_bytes": lambda n: string(n, "\u00e9"),
    "text_of_four_bytes": lambda n: string(n, "\U0001f9e9"),
    "escapes": lambda n: string(n, r'\n\"\\\t'),
    "unicode_escapes": lambda n: string(n, r"\u00e9\ud83e\udde9"),
    "integers": lambda n: repeat(n, "0"),
    "token_ids": lambda n: repeat(n, "151643"),
    "large_integers": lambda n: repeat(n, "-9223372036854775808"),
    "doubles": lambda n: repeat(n, "-0.12345678901234567"),
    "exponents": lambda n: repeat(n, "1e-308"),
    "long_numbers": lambda n: repeat(n, "9" * 4000 + "e-4000"),
    "literals": lambda n: repeat(n, lambda i: ("null", "true", "false")[i % 3]),
    "empty_strings": lambda n: repeat(n, '""'),
    "short_strings": lambda n: repeat(n, lambda i: f'"{i}"'),
    "empty_arrays": lambda n: repeat(n, "[]"),
    "empty_objects": lambda n: repeat(n, "{}"),
    "deep_arrays": lambda n: repeat(n, nested(60)),
    "deep_objects": lambda n: repeat(n, nested(60, '{"k":', "}", "0")),
    "small_objects": lambda n: repeat(n, '{"id":7,"s":"x"}'),
    "objects_of_17": lambda n: repeat(n, keys(17)),
    "wide_objects": lambda n: repeat(n, keys(1000)),
    "wide_then_small": lambda n: repeat(n, keys(17), "[" + keys(1000) + ","),
    "long_keys": lambda n: repeat(n, keys(16, "k" * 1000)),
    "escaped_keys": lambda n: repeat(n, keys(100, r"\u006b")),
    "root_of_long_members": lambda n: keys(1000, value=string(n // 1000 - 10, "b")),
    "messages": lambda n: '{"messages":' + repeat(n - 14, '{"role":"user","content":"Tell me a story."}') + "}",
    "white_space": lambda n: "[" + " \n\t\r" * ((n - 3) // 4) + "0]",
    "ignored_objects": in_member(lambda n: repeat(n, "{}")),
    "ignored_text": in_member(lambda n: string(n, "a")),
    "ignored_wide_objects": in_member(lambda n: repeat(n, keys(1000))),
}

INVALID = {
    "cut_off": lambda n: repeat(n, "[1,2]").encode()[:-1],
    "comma_at_the_end": lambda n: repeat(n - 1, "0").encode()[:-1] + b",]",
    "too_deep": lambda n: nested(n // 2).encode(),
    "too_many_keys": lambda n: repeat(n, lambda i: f'"{i}":0', "{", "}").encode(),
    "key_twice_at_the_end": lambda n: repeat(n - 16, "{}").encode()[:-1] + b',{"a":0,"a":0}]',
    "too_large_a_number": lambda n: repeat(n - 8, "0").encode()[:-1] + b",1e999]",
    "lone_surrogates": lambda n: string(n, r"\ud83e").encode(),
    "broken_utf8": lambda n: b'"' + b"\xf0\x9f\xa7" * ((n - 2) // 3) + b'"',
    "broken_utf8_at_the_end": lambda n: b'"' + b"a" * (n - 4) + b'\xc3"',
    "control_characters": lambda n: b'"' + b"a\x01" * ((n - 2) // 2) + b'"',
    "zeros": lambda n: b"[0]" + b"\0" * (n - 3),
    "random_brackets": lambda n: (b"[{}]][{:,\"" * (n // 10 + 1))[:n],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=16, help="size of a seed (%(default)s)")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    size = options.mib << 20
    for name, shape in {**VALID, **INVALID}.items():
        seed = shape(size)
        content = seed if isinstance(seed, bytes) else seed.encode()
        if not size - 65536 <= len(content) <= size:
            raise ValueError(f"{name} has {len(content)} bytes, wanted are {size}")
        (options.directory / name).write_bytes(content)
    print(f"{len(VALID)} seeds that are JSON and {len(INVALID)} that are not, in {options.directory}")


if __name__ == "__main__":
    main()
