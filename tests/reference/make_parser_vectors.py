#!/usr/bin/env python3
"""Makes the vectors of tests/data/chat_parsers: what others make of models' outputs with reasoning and calls.

    python3 -m venv /tmp/oracles
    /tmp/oracles/bin/pip install openai-harmony==0.0.8 bpe-openai==0.1.4 numpy apache-tvm-ffi pydantic jsonschema
    /tmp/oracles/bin/pip install --no-deps xgrammar==0.2.8       # its torch is not needed here
    /tmp/oracles/bin/python tests/reference/make_parser_vectors.py [harmony.json] [tool_calls.json]

harmony.json: completions of gpt-oss, well formed and not, with what openai-harmony's StreamableParser has of them after each token.
tool_calls.json: random walks through the grammars that xgrammar has for the calls of each model (get_model_structural_tag),
read by the few lines of `read_output` and checked against the tools' schemas by jsonschema.

The seeds are fixed: two runs write the same bytes.
"""

import base64
import json
import os
import pathlib
import random
import re
import string
import sys
import tempfile
import types

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat_parsers"
TEXTS = [
    "Well, so.", "a\n\nb", " two  spaces ", "caf\u00e9 \U0001f600 \u4e2d\u6587", "{test1,test2", 'He said "no"; } ] {', "a < b <| c |> d",
    "to=functions.weather", "assistant", "```json\n{}\n```", "\n", "<think>x</think>", "commentary to=functions.f <",
]
SPELT = ["<|end|>", "<|channel|>final<|message|>", "<|call|>", "<|start|>assistant", "<|return|>", "<|constrain|>json"]
ARGUMENTS = ['{"city": "Rome"}', '{"s": "{test1,test2", "t": "}{"}', '{"a": {"b": [1, {"c": null}]}}', "{}", "", '{"x": "caf\u00e9 \U0001f600"}']
MARKERS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"]


# gpt-oss


def random_message(rng):
    """(header, text, end): what stands between <|start|>assistant and the next; pieces of (text, whether it is of control)."""
    kind = rng.choice(["analysis", "analysis", "final", "preamble", "call", "call", "own"])
    text = [(rng.choice(TEXTS), False) for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.3:
        text.insert(rng.randint(0, len(text)), (rng.choice(SPELT), False))
    channel = {"preamble": "commentary", "call": "commentary", "own": "analysis"}.get(kind, kind)
    header = [("<|channel|>", True), (channel, False)]
    end = rng.choice(["<|end|>", "<|end|>", "<|return|>"])
    if kind in ("call", "own"):
        name = rng.choice(["functions.weather", "functions.get_time-2", "weather"]) if kind == "call" else "python"
        if kind == "call":
            text = [(rng.choice(ARGUMENTS), False)]
            if rng.random() < 0.15:
                header[1] = ("analysis", False)
        kinds = [[(" ", False), ("<|constrain|>", True), ("json", False)], [("<|constrain|>", True), ("json", False)], [(" json", False)],
                 [(" code", False)], []]
        if rng.random() < 0.3:
            header = [(f" to={name}", False), *header]
        else:
            header.append((f" to={name}", False))
        header += rng.choice(kinds)
        end = rng.choice(["<|call|>", "<|call|>", "<|end|>"])
    elif rng.random() < 0.1:
        header = []  # a message without a channel
    return [*header, ("<|message|>", True)], text, end


def random_completion(rng):
    pieces = []
    for i in range(rng.randint(1, 4)):
        header, text, end = random_message(rng)
        if i > 0:
            pieces += [("<|start|>", True), ("assistant", False)]
        pieces += [*header, *text, (end, True)]
    if rng.random() < 0.2:
        pieces.pop()  # the server stops in front of it
    damage = rng.random()
    if damage < 0.35:
        at = rng.randrange(len(pieces))
        if damage < 0.15:
            del pieces[at]
        elif damage < 0.25:
            pieces.insert(at, (rng.choice(MARKERS), True))
        else:
            pieces.insert(at, (rng.choice(TEXTS), False))
    return pieces


def read_harmony(harmony, encoding, pieces):
    """The completion up to where openai-harmony gives up, or takes a marker of a next message for text: there ours go on with that
    message. None where nothing is left."""
    tokens = []
    for text, control in pieces:
        if control:
            tokens += [(token, True) for token in encoding.encode(text, allowed_special="all")]
        elif text:
            tokens += [(token, False) for token in encoding.encode(text, disallowed_special=())]
    parser = harmony.StreamableParser(encoding, harmony.Role.ASSISTANT)
    # `states`: [bytes of text, messages begun, bytes of the last one's text, whether that has ended].
    record = {"text": "", "control": [], "states": [], "messages": []}
    held = []
    header = ""
    stopped = False
    for token, control in tokens:
        name = encoding.decode([token]) if control else ""
        in_header = parser.state == harmony.StreamState.HEADER
        ends_message = name in ("<|end|>", "<|call|>", "<|return|>")
        if name in ("<|start|>", "<|channel|>") and parser.state == harmony.StreamState.CONTENT or in_header and (
            ends_message or name == "<|start|>"
        ):
            stopped = True
            break
        # A second one makes what is behind it a part of the recipient there.
        if in_header and name == "<|channel|>" and "<|channel|>" in header:
            stopped = True
            break
        if not in_header:
            header = ""
        header += name
        before = len(parser.messages)
        try:
            parser.process(token)
        except harmony.HarmonyError:
            stopped = True
            break
        held.append(token)
        text = encoding.decode_utf8(held) if not control else name
        if control:
            record["control"].append(len(record["text"].encode()))
        if "\ufffd" in text:
            continue  # within a character
        record["text"] += text
        held = []
        content = parser.state == harmony.StreamState.CONTENT
        begun = len(parser.messages) + content
        if content and len(record["messages"]) < begun:
            recipient = parser.current_recipient or ""
            # What it has for a recipient where there is none (0.0.8).
            if recipient.startswith("<|constrain|>"):
                recipient = ""
            record["messages"].append({"channel": parser.current_channel or "", "recipient": recipient, "text": ""})
        if content:
            record["messages"][-1]["text"] = parser.current_content
        elif len(parser.messages) > before:
            record["messages"][-1]["text"] = parser.messages[-1].content[0].text
        size = len(record["messages"][-1]["text"].encode()) if record["messages"] else 0
        record["states"].append([len(record["text"].encode()), begun, size, int(begun > 0 and not content)])
    if held:
        return None
    record["whole"] = not stopped and parser.state != harmony.StreamState.HEADER
    return record if record["messages"] else None


def make_harmony():
    import bpe_openai
    import openai_harmony

    # The vocabulary that openai-harmony would download; it checks the hash.
    with tempfile.TemporaryDirectory() as directory:
        o200k = bpe_openai.get_encoding("o200k_base")
        lines = (base64.b64encode(o200k.decode_single_token_bytes(i)) + b" %d\n" % i for i in range(199998))
        (pathlib.Path(directory) / "o200k_base.tiktoken").write_bytes(b"".join(lines))
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = directory
        encoding = openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    rng = random.Random(20261126)
    vectors = []
    while len(vectors) < 100:
        vector = read_harmony(openai_harmony, encoding, random_completion(rng))
        if vector is not None:
            vectors.append(vector)
    return vectors


# Calls of the other models

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "names": {"type": "array", "items": {"type": "string"}}},
                      "required": ["lat"]},
        },
        "required": ["city"],
    }}},
    {"type": "function", "function": {"name": "write_file", "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["path", "content"],
    }}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
NAME = r"(?P<name>\w+)"
QWEN = (rf"<function={NAME}>", "</function>", r"<parameter=(?P<key>\w+)>\n?(?P<value>.*?)\n?</parameter>")
DSML = (r'<｜DSML｜invoke name="(?P<name>\w+)">', "</｜DSML｜invoke>",
        r'<｜DSML｜parameter name="(?P<key>\w+)" string="(?P<text>true|false)">(?P<value>.*?)</｜DSML｜parameter>')
TOOL_CALL = ("<tool_call>", "</tool_call>")
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
# xgrammar's name, vLLM's names of calls and reasoning, what begins and ends calls, and a call: what stands in front of arguments in
# JSON and behind them; or in front of tags, behind them, and a tag.
MODELS = [
    ("qwen_3", "hermes", "qwen3", TOOL_CALL, (rf'{{"name": "{NAME}", "arguments": ', "}")),
    ("exaone", "hermes", "qwen3", TOOL_CALL, (rf'{{"name": "{NAME}", "arguments": ', "}")),
    ("qwen_3_5", "qwen3_coder", "qwen3", TOOL_CALL, QWEN),
    ("mimo", "qwen3_coder", "qwen3", TOOL_CALL, QWEN),
    ("glm_4_7", "glm47", "glm45", TOOL_CALL,
     (NAME, "", r"<arg_key>(?P<key>\w+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>")),
    ("deepseek_r1", "deepseek_v3", "deepseek_v3", DEEPSEEK,
     (rf"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n", "\n```<｜tool▁call▁end｜>")),
    ("deepseek_v3_1", "deepseek_v31", "deepseek_v3", DEEPSEEK, (rf"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>", "<｜tool▁call▁end｜>")),
    ("deepseek_v3_2", "deepseek_v32", "deepseek_v3", ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"), DSML),
    ("deepseek_v4", "deepseek_v4", "deepseek_v3", ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"), DSML),
    ("kimi", "kimi_k2", "kimi_k2", ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
     (rf"<\|tool_call_begin\|>(?P<id>functions\.{NAME}:\d+)<\|tool_call_argument_begin\|>", "<|tool_call_end|>")),
    ("minimax", "minimax_m2", "minimax_m2", ("<minimax:tool_call>", "</minimax:tool_call>"),
     (rf'<invoke name="{NAME}">', "</invoke>", r'<parameter name="(?P<key>\w+)">(?P<value>.*?)</parameter>')),
]
WORDS = [
    *string.ascii_letters, *string.digits, *string.punctuation, " ", "\n", "\u00e9", "\U0001f600", "\u4e2d", "｜", "▁", "null", "true", "</", "<tool", "<｜",
    "<|", "```", '{"name": "', "functions.", "\\n", '\\"', "\\u00e9", "\n\n", "Rome", "</tool_call", "<arg_", "12", "-3.5e2",
]  # fmt: skip
BEHIND_TAG = ("\n<function=", "<function=", "\n{")
TAGS = [
    *("<tool_call>" + more for more in BEHIND_TAG), "</think>", "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>",
    "<｜DSML｜invoke", "</｜DSML｜invoke>", "<｜DSML｜parameter", "</｜DSML｜parameter>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<minimax:tool_call>",
    "</minimax:tool_call>", "<invoke name=", "</invoke>", "<parameter name=", *MARKERS,
]  # fmt: skip


def import_xgrammar():
    """Without torch and transformers, which it imports for what is not used here."""
    import tvm_ffi  # noqa: F401  looks for the real ones, so it comes first

    class Absent(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return object

    for name in ("torch", "transformers"):
        sys.modules[name] = Absent(name)
    sys.modules["torch"].tensor = lambda *_, **__: None
    import xgrammar

    return xgrammar


def walk(xgrammar, grammar, vocabulary, begin, rng):
    """A text with calls that the grammar takes; None where it gets long."""
    import numpy

    matcher = xgrammar.GrammarMatcher(grammar)
    mask = numpy.zeros((1, (len(vocabulary) + 31) // 32), dtype=numpy.int32)
    end = len(vocabulary) - 1
    text = ""
    for _ in range(250):
        matcher.fill_next_token_bitmask(mask)
        allowed = numpy.unpackbits(mask.view(numpy.uint8), bitorder="little")[: len(vocabulary)].nonzero()[0].tolist()
        tags = [token for token in allowed if vocabulary[token] in TAGS]
        quotes = [token for token in allowed if vocabulary[token] in ('"', "}", "]")]
        if end in allowed and (len(allowed) == 1 or (begin in text and rng.random() < 0.3)):
            return text
        begins = [token for token in tags if vocabulary[token] in (begin, *(begin + more for more in BEHIND_TAG), "</think>")]
        if begins and rng.random() < 0.2:
            allowed = begins
        elif tags and rng.random() < 0.25:
            allowed = tags
        elif quotes and rng.random() < 0.25:
            allowed = quotes
        token = rng.choice([token for token in allowed if token != end])
        assert matcher.accept_token(token)
        text += vocabulary[token]
    return None


def read_value(name, key, value, text):
    schema = next(t["function"]["parameters"]["properties"][key] for t in TOOLS if t["function"]["name"] == name)
    return value if (schema["type"] == "string" if text is None else text == "true") else json.loads(value)


def skip_space(text, at):
    return at + len(text[at:]) - len(text[at:].lstrip())


def read_call(text, at, call, end):
    """{name, id, arguments} and where it ends."""
    head = re.compile(call[0]).match(text, at)
    if len(call) == 2:
        arguments, at = json.JSONDecoder().raw_decode(text, head.end())
    else:
        arguments = {}
        at = skip_space(text, head.end())
        while not text.startswith(call[1] or end, at):
            tag = re.compile(call[2], re.DOTALL).match(text, at)
            arguments[tag["key"]] = read_value(head["name"], tag["key"], tag["value"], tag.groupdict().get("text"))
            at = skip_space(text, tag.end())
    assert text.startswith(call[1], at), text[at:]
    return {"name": head["name"], "id": head.groupdict().get("id") or "", "arguments": arguments}, at + len(call[1])


def read_output(text, in_reasoning, around, call):
    thought = content = ""
    if in_reasoning:
        thought, _, text = text.partition("</think>")
        thought = thought.lstrip().removeprefix("<think>")  # once more, though the prompt has it
    calls = []
    at = 0
    while (begin := text.find(around[0], at)) >= 0:
        content += text[at:begin]
        at = skip_space(text, begin + len(around[0]))
        if not re.compile(call[0]).match(text, at):  # the tag alone is text
            at = begin + len(around[0])
            content += around[0]
            continue
        while not text.startswith(around[1], at):
            one, at = read_call(text, at, call, around[1])
            calls.append(one)
            at = skip_space(text, at)
        at += len(around[1])
    return thought, content + text[at:], calls


def make_tool_calls():
    import jsonschema

    xgrammar = import_xgrammar()
    vocabulary = [*WORDS, *TAGS, "<eos>"]
    info = xgrammar.TokenizerInfo(
        [token.encode() for token in vocabulary], xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[len(vocabulary) - 1]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    vectors = []
    for model, calls_parser, reasoning_parser, around, call in MODELS:
        for choice in ("auto", "required"):
            for in_reasoning in (False, True):
                mode = "enabled" if in_reasoning else "disabled"
                tag = xgrammar.get_model_structural_tag(model, TOOLS, choice, mode, max_whitespace_cnt=2)
                grammar = compiler.compile_structural_tag(tag)
                rng = random.Random(f"{model} {choice} {in_reasoning}")
                taken = 0
                while taken < 4:
                    text = walk(xgrammar, grammar, vocabulary, around[0], rng)
                    if text is None or len(text.encode()) > 1200:
                        continue
                    if model == "minimax" and not in_reasoning:
                        text = text.removeprefix("\n</think>")  # empty reasoning, which the prompt has opened
                    thought, content, calls = read_output(text, in_reasoning, around, call)
                    for one in calls:
                        schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == one["name"])
                        jsonschema.validate(one["arguments"], schema)
                    if not calls:
                        continue
                    json.dumps(calls, allow_nan=False)
                    vectors.append({
                        "model": model, "calls": calls_parser, "reasoning": reasoning_parser, "in_reasoning": in_reasoning,
                        "text": text, "thought": thought, "content": content, "said": calls,
                    })
                    taken += 1
                print(model, choice, mode, file=sys.stderr)
    return {"tools": TOOLS, "outputs": vectors}


def write(name, value):
    vectors = value if isinstance(value, list) else value["outputs"]
    lines = ",\n".join(json.dumps(vector, ensure_ascii=False, separators=(",", ":")) for vector in vectors)
    text = f"[\n{lines}\n]" if isinstance(value, list) else f'{{"tools":{json.dumps(value["tools"])},\n"outputs":[\n{lines}\n]}}'
    (DATA / name).write_text(text + "\n", encoding="utf-8")


def main():
    DATA.mkdir(exist_ok=True)
    which = sys.argv[1:] or ["harmony.json", "tool_calls.json"]
    for name in which:
        write(name, make_harmony() if name == "harmony.json" else make_tool_calls())


if __name__ == "__main__":
    main()
