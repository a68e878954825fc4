"""What the tests of batch jobs ask, and how they read what was answered."""

import json

WORDS = "the old man and cold night sea ship river king child stone bread winter road".split()


def prompt(rng, most_words):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, most_words)))


def answers(path, of_usage=lambda usage: usage["completion_tokens"]):
    """custom_id: what must not change. Fails when an id is there twice or a line is not whole."""
    found = {}
    text = path.read_text()
    assert text == "" or text.endswith("\n"), "the last line is not whole"
    for line in text.splitlines():
        entry = json.loads(line)
        assert entry["error"] is None and entry["response"]["status_code"] == 200, line
        assert entry["custom_id"] not in found, f"{entry['custom_id']} is there twice"
        body = entry["response"]["body"]
        found[entry["custom_id"]] = (body["choices"], of_usage(body["usage"]))
    return found
