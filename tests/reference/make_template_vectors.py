#!/usr/bin/env python3
"""Makes the vectors of tests/data/chat_templates with Jinja2, set up as transformers does it.

    python3 tests/reference/make_template_vectors.py     # needs jinja2 3.1
    python3 tests/reference/make_template_vectors.py --templates DIR
    MOESAIC_CHAT_TEMPLATES=DIR build/release/tests/serving_text_jinja_test --gtest_filter='*AgreeWithJinja2'

The second form writes conversations.json for other templates than those that are committed: any *.jinja of DIR, such as those of
models, with the special tokens of DIR/special_tokens.json, {"NAME": {"bos_token": ...}}, if there is one. The test then
compares these.

expressions.json: small templates with their output, or "raises" where Jinja2 raises. Cases that no
other implementation can match (addresses in reprs, integers above 127 bits) are left out.
conversations.json: the templates of *.jinja there, rendered for many conversations.
"""

import argparse
import datetime
import json
import pathlib
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from template_conversations import CONVERSATIONS, TEMPLATES  # noqa: E402
from template_expressions import CONTEXT, EXPRESSIONS  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat_templates"
NOW = datetime.datetime(2025, 7, 4, 9, 5, 3)  # the test's clock


class Generation(Extension):
    """transformers' {% generation %}: marks what the model said; here only its scope matters."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(env, template, context):
    try:
        text = env.from_string(template).render(**context)
        text.encode("utf-8")  # a lone surrogate is no text
        return {"expect": text}
    except Exception as error:  # every way to fail is one: "raises"
        message = f"{type(error).__name__}: {error}".split("\n")[0][:120]
        return {"raises": message.encode("ascii", "backslashreplace").decode()}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")


def write_expressions(env):
    cases = [{"template": t, **render(env, t, CONTEXT)} for t in EXPRESSIONS]
    write(DATA / "expressions.json", {"context": CONTEXT, "cases": cases})
    raising = sum("raises" in case for case in cases)
    print(f"{len(cases)} expressions, {raising} of them raise")


def write_conversations(env, folder, templates):
    cases = []
    for name, special_tokens in templates.items():
        source = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        for conversation in CONVERSATIONS:
            context = {
                "messages": conversation["messages"],
                "tools": conversation.get("tools"),
                "documents": None,
                "add_generation_prompt": conversation.get("add_generation_prompt", True),
                **special_tokens,
                **conversation.get("kwargs", {}),
            }
            cases.append({"template": name, "conversation": conversation["name"], **render(env, source, context)})
    write(folder / "conversations.json", {"special_tokens": templates, "conversations": CONVERSATIONS, "cases": cases})
    raising = sum("raises" in case for case in cases)
    print(f"{len(cases)} renderings, {raising} of them raise")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=pathlib.Path)
    folder = parser.parse_args().templates
    env = environment()
    if folder is None:
        write_expressions(env)
        write_conversations(env, DATA, TEMPLATES)
        return
    tokens = folder / "special_tokens.json"
    known = json.loads(tokens.read_text()) if tokens.exists() else {}
    write_conversations(env, folder, {path.stem: known.get(path.stem, {}) for path in sorted(folder.glob("*.jinja"))})


if __name__ == "__main__":
    main()
