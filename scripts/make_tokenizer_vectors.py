#!/usr/bin/env python3
"""Makes the tokenizers under tests/data/tokenizers and the vectors that test them.

  make_tokenizer_vectors.py vocabularies SOURCE OUT   vocabularies and their published vectors
  make_tokenizer_vectors.py oracle OUT TEXT...        ids that Hugging Face's tokenizers gives
  make_tokenizer_vectors.py components OUT            the same for small tokenizers of all components
  make_tokenizer_vectors.py tiktoken OUT              what tiktoken makes of the oracle's texts with the sample model's
                                                      vocabulary as ranks and Kimi's way to cut words

SOURCE holds llama_cpp_vocabs/ggml-vocab-*.gguf{,.inp,.out} (from llama.cpp's models/), qwen2/
(vocab.json.gz, merges.txt, tokenizer_config.json, the vectors), gpt2/tokenizer.json.gz and
olmoe_gpt_neox/tokenizer.json.gz. A GGUF file has tokens, types, scores and merges, but names its
pre-tokenizer only; the rules behind the names are below. The output is deterministic.

`oracle` and `components` need the packages tokenizers and sentencepiece, `tiktoken` that of its name; `vocabularies` needs nothing. TEXT are text
files (.gz allowed); small samples of them are written with the ids.
"""

import argparse
import gzip
import json
import pathlib
import random
import struct
import sys

# Token types of GGUF; those of SentencePiece have the same numbers.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# DeepSeek-LLM lists the cased letters of its day one by one.
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")


def read_gguf(path):
    """The metadata of a GGUF file: key -> value."""
    data = path.read_bytes()
    at = 0
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def scalar(code):
        nonlocal at
        value, = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return value

    def string():
        nonlocal at
        length = scalar("Q")
        at += length
        return data[at - length:at].decode("utf-8")

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            element, count = scalar("I"), scalar("Q")
            return [value(element) for _ in range(count)]
        return scalar(scalars[kind])

    if data[:4] != b"GGUF":
        sys.exit(f"{path}: not a GGUF file")
    at = 4
    scalar("I")  # version
    scalar("Q")  # tensors
    return {string(): value(scalar("I")) for _ in range(scalar("Q"))}


def added_token(token_id, content, special, normalized=False):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": normalized, "special": special}


def byte_level(add_prefix_space=False, trim_offsets=True, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space,
            "trim_offsets": trim_offsets, "use_regex": use_regex}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def tokenizer_json(vocab, merges, added, pre_tokenizer, decoder, normalizer=None, post=None, **model):
    """`merges`: "left right" strings, or pairs."""
    settings = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "ignore_merges": False}
    settings.update(model)
    settings.update(vocab=vocab, merges=merges)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post,
            "decoder": decoder, "model": settings}


def prepend_template(token, token_id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": token, "type_id": 0}},
                     {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": token, "type_id": 1}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}}}


def gguf_vocabulary(metadata):
    """The vocabulary without added tokens, and (id, content, type) of those."""
    vocab, added = {}, []
    for i, (token, kind) in enumerate(zip(metadata["tokenizer.ggml.tokens"],
                                          metadata["tokenizer.ggml.token_type"])):
        if kind == NORMAL:
            vocab[token] = i
        elif not token.startswith("[PAD"):  # rows that the conversion has filled in
            added.append((i, token, kind))
    return vocab, added


def make_starcoder(metadata):
    vocab, added = gguf_vocabulary(metadata)
    vocab = {token: i for i, token, _ in added} | vocab
    pre = {"type": "Sequence",
           "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level()]}
    return tokenizer_json(vocab, metadata["tokenizer.ggml.merges"],
                          [added_token(i, token, True) for i, token, _ in added], pre, byte_level())


def make_deepseek(metadata):
    vocab, added = gguf_vocabulary(metadata)
    pre = {"type": "Sequence",
           "pretokenizers": [split("[\r\n]"), split(f"\\s?[{DEEPSEEK_LETTERS}]+"),
                             split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                             split("\\s+$"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
                             {"type": "Digits", "individual_digits": True},
                             byte_level(use_regex=False)]}
    bos = metadata["tokenizer.ggml.bos_token_id"]
    return tokenizer_json(vocab, metadata["tokenizer.ggml.merges"],
                          [added_token(i, token, kind == CONTROL, True) for i, token, kind in added],
                          pre, byte_level(), normalizer={"type": "Sequence", "normalizers": []},
                          post=prepend_template(metadata["tokenizer.ggml.tokens"][bos], bos))


def make_qwen2(folder):
    vocab = json.loads(gzip.decompress((folder / "vocab.json.gz").read_bytes()))
    merges = [line for line in (folder / "merges.txt").read_text("utf-8").split("\n")
              if line and not line.startswith("#version")]
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    added = [added_token(int(i), token["content"], token["special"], token["normalized"])
             for i, token in config["added_tokens_decoder"].items()]
    pre = {"type": "Sequence", "pretokenizers": [
        split(QWEN2_WORDS), byte_level(trim_offsets=False, use_regex=False)]}
    return tokenizer_json(vocab, merges, added, pre,
                          byte_level(trim_offsets=False, use_regex=False),
                          normalizer={"type": "NFC"},
                          post=byte_level(trim_offsets=False, use_regex=False),
                          continuing_subword_prefix="", end_of_word_suffix="")


def spm_merges(tokens, scores, types):
    """All ways to put a piece together from two, best piece first (as transformers converts it)."""
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, score, kind in zip(tokens, scores, types):
        if kind not in (NORMAL, USER_DEFINED):
            continue
        local = [(token[:i], token[i:]) for i in range(1, len(token))
                 if token[:i] in vocab and token[i:] in vocab]
        local.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(score, len(left), len(right), left, right) for left, right in local]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [[left, right] for *_, left, right in merges]


def make_mixtral_style(metadata):
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    bar = "\u2581"
    return tokenizer_json(
        {token: i for i, token in enumerate(tokens)},
        spm_merges(tokens, metadata["tokenizer.ggml.scores"], types),
        [added_token(i, token, True) for i, (token, kind) in enumerate(zip(tokens, types))
         if kind in (UNKNOWN, CONTROL)],
        None,
        {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": bar}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": bar},
            {"type": "Replace", "pattern": {"String": " "}, "content": bar}]},
        post=prepend_template("<s>", 1), unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def protobuf_field(number, value):
    def varint(n):
        out = bytearray()
        n &= (1 << 64) - 1
        while True:
            out.append((n & 0x7F) | (0x80 if n > 0x7F else 0))
            n >>= 7
            if not n:
                return bytes(out)

    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode("utf-8")
    return varint(number << 3 | 2) + varint(len(value)) + value


def make_sentencepiece(metadata):
    """A ModelProto (sentencepiece_model.proto) with Llama's settings."""
    model = bytearray()
    for token, score, kind in zip(metadata["tokenizer.ggml.tokens"],
                                  metadata["tokenizer.ggml.scores"],
                                  metadata["tokenizer.ggml.token_type"]):
        piece = protobuf_field(1, token) + protobuf_field(2, float(score)) + protobuf_field(3, kind)
        model += protobuf_field(1, piece)
    trainer = [(3, 2), (4, len(metadata["tokenizer.ggml.tokens"])), (35, 1), (40, 0), (41, 1), (42, 2),
               (43, -1)]  # BPE, size, byte fallback, ids of unk, bos, eos, pad
    model += protobuf_field(2, b"".join(protobuf_field(n, v) for n, v in trainer))
    normalizer = [(1, "identity"), (3, 1), (4, 0), (5, 1)]  # dummy prefix, keep spaces, escape them
    model += protobuf_field(3, b"".join(protobuf_field(n, v) for n, v in normalizer))
    return bytes(model)


def write_gz(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(data, bytes):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{path}: {path.stat().st_size:,} bytes")


def vocabularies(source, out):
    gguf = source / "llama_cpp_vocabs"

    def vectors(name, prefix):
        for kind in ("inp", "out"):
            write_gz(out / name / f"vectors.{kind}.gz", prefix.with_name(f"{prefix.name}.{kind}")
                     .read_bytes())

    gpt2 = json.loads(gzip.decompress((source / "gpt2/tokenizer.json.gz").read_bytes()))
    check = read_gguf(gguf / "ggml-vocab-gpt-2.gguf")
    tokens = {token: i for i, token in enumerate(check["tokenizer.ggml.tokens"])}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in gpt2["model"]["merges"]]
    if tokens != gpt2["model"]["vocab"] or merges != check["tokenizer.ggml.merges"]:
        sys.exit("the two GPT-2 vocabularies differ")
    write_gz(out / "gpt2/tokenizer.json.gz", gpt2)
    vectors("gpt2", gguf / "ggml-vocab-gpt-2.gguf")

    write_gz(out / "olmoe/tokenizer.json.gz",
             gzip.decompress((source / "olmoe_gpt_neox/tokenizer.json.gz").read_bytes()))

    starcoder = read_gguf(gguf / "ggml-vocab-starcoder.gguf")
    write_gz(out / "starcoder/tokenizer.json.gz", make_starcoder(starcoder))
    vectors("starcoder", gguf / "ggml-vocab-starcoder.gguf")

    deepseek = read_gguf(gguf / "ggml-vocab-deepseek-llm.gguf")
    write_gz(out / "deepseek_llm/tokenizer.json.gz", make_deepseek(deepseek))
    vectors("deepseek_llm", gguf / "ggml-vocab-deepseek-llm.gguf")

    write_gz(out / "qwen2/tokenizer.json.gz", make_qwen2(source / "qwen2"))
    write_gz(out / "qwen2/tokenizer_config.json.gz",
             (source / "qwen2/tokenizer_config.json").read_bytes())
    vectors("qwen2", source / "qwen2/ggml-vocab-qwen2.gguf")

    llama = read_gguf(gguf / "ggml-vocab-llama-spm.gguf")
    write_gz(out / "llama_spm/tokenizer.model.gz", make_sentencepiece(llama))
    vectors("llama_spm", gguf / "ggml-vocab-llama-spm.gguf")
    write_gz(out / "mixtral_style/tokenizer.json.gz", make_mixtral_style(llama))


HAND_WRITTEN = [
    "", " ", "  ", "\n", "\r\n", "\t \n", "a", " a", "a ", "Hello, world!", "I'LL he'd we've it\u017f's DON'T",
    "caf\u00e9 cafe\u0301 \u1e69 s\u0323\u0307 \u212b \u2126 \ufb01 \uac00 \u1100\u1161\u11a8",
    "\u0344\u0374\u0958 \u0f43\U0001d15e", "1 12 123 1234567 \u0661\u0662 \u00bd \u2167 \u2460 \u4e09",
    "\u180e\u00a0\u2003\u3000\u0085\u2028\u200b\u200d|", "\U0001f999\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "a_b\u203fc __init__ x\u0308y", "\u0e44\u0e17\u0e22 \u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u0631\u062d\u0628\u0627",
    "tab\tand   spaces    \n\n\n  done  ", "a" * 300, " " * 300 + "x", "\n" * 100, "ab " * 100,
    "<s>x</s> <s> </s>", "x<|endoftext|>y <|im_start|>user\nhi<|im_end|>\n", "|||IP_ADDRESS||| and  |||EMAIL|||",
    "                        deep    indent", "<0x41><0x0A>", "\u2581under\u2581score", "\x00\x01\x7f",
    "\U0010ffff\ue000\ufffd", "<\uff5cbegin\u2581of\u2581sentence\uff5c>\u00f6\u00fc", "\u00f6 \u00d6l \u00fcber",
]


def read_text(path):
    data = pathlib.Path(path).read_bytes()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    return data.decode("utf-8")


def random_text(rng):
    alphabets = [(32, 126), (32, 64), (9, 13), (160, 591), (768, 879), (880, 1279), (2304, 2431),
                 (3585, 3675), (4352, 4607), (8192, 8303), (12288, 12543), (19968, 20200),
                 (44032, 44300), (65281, 65374), (127744, 128591), (0x1D400, 0x1D4FF)]
    text = []
    for _ in range(rng.randint(1, 12)):
        low, high = rng.choice(alphabets)
        text.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8))))
    return rng.choice(["", " "]).join(text)


def oracle_texts(paths):
    rng = random.Random(20240607)
    texts = list(HAND_WRITTEN)
    texts += [random_text(rng) for _ in range(400)]
    for path in paths:
        whole = read_text(path)
        for _ in range(24):
            start = rng.randrange(len(whole))
            texts.append(whole[start:start + rng.choice([30, 200, 900])])
    return texts


def oracle(out, paths, sample):
    import sentencepiece
    import tokenizers
    texts = oracle_texts(paths)
    write_gz(out / "oracle_texts.json.gz", texts)
    folders = [folder for folder in out.iterdir() if folder.is_dir() and folder.name != "sample"]
    for folder in sorted(folders) + ([out / "sample"] if sample else []):
        if folder.name == "sample" or (folder / "tokenizer.json.gz").exists():
            definition = (sample.read_bytes() if folder.name == "sample" else
                          gzip.decompress((folder / "tokenizer.json.gz").read_bytes()))
            model = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
            around = model.encode("").ids
            encoded = [model.encode(text, add_special_tokens=False).ids for text in texts]
            decoded = [model.decode(ids, skip_special_tokens=False) for ids in encoded]
            # The same texts with special tokens as plain text.
            model.encode_special_tokens = True
            plain = [model.encode(text, add_special_tokens=False).ids for text in texts]
        elif (folder / "tokenizer.model.gz").exists():
            model = sentencepiece.SentencePieceProcessor(
                model_proto=gzip.decompress((folder / "tokenizer.model.gz").read_bytes()))
            # The library itself never parses special tokens, nor shows unknown ones as they are.
            around, encoded = None, None
            plain = [model.encode(text) for text in texts]
            decoded = [model.decode(ids) for ids in plain]
        else:
            continue
        data = {"around": around, "ids": encoded}
        # Of the rest what is not the same: text numbers and values.
        data["plain_ids"] = [[i, ids] for i, ids in enumerate(plain) if not encoded or ids != encoded[i]]
        data["decoded"] = [[i, text] for i, text in enumerate(decoded) if text != texts[i]]
        write_gz(folder / "oracle.json.gz", data)


# Kimi-K2's (tokenization_kimi.py of moonshotai/Kimi-K2-Instruct).
KIMI_WORDS = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
KIMI_TEXTS = ["\u6f22\u5b57Kanji\u6f22", "We'LL don't\u6f22\u5b57's", "ABCdefGHI iPhone McDonald's", "12345 67\u4e09",
              "\u6f22 \u5b57\n\n x", "\u3042\u30a2\u6f22\u3005\u3007", "aaaa aaaaa bananana", "  \t a  \n  b"]


def tiktoken_vectors(out, sample):
    import tiktoken
    bytes_of = {letter: byte for byte, letter in byte_alphabet().items()}
    vocabulary = json.loads(sample.read_text())["model"]["vocab"]
    ranks = {bytes(bytes_of[letter] for letter in token): rank for token, rank in vocabulary.items()}
    special = {"<|im_end|>": max(ranks.values()) + 3, "<|im_middle|>": max(ranks.values()) + 18}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI_WORDS, mergeable_ranks=ranks, special_tokens=special)
    texts = json.loads(gzip.decompress((out / "oracle_texts.json.gz").read_bytes()))
    (out / "tiktoken").mkdir(exist_ok=True)
    write_gz(out / "tiktoken/oracle.json.gz", {
        "special": special,
        "ids": [encoding.encode(text, disallowed_special=()) for text in texts],
        "more": [[text, encoding.encode(text, allowed_special="all")]
                 for text in KIMI_TEXTS + ["a<|im_end|>b<|im_middle|> c"]]})


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


BAR = "\u2581"


def component_variants():
    """Pairs of a name and the parts of a tokenizer.json that differ from the plain one."""
    nfc, lower = {"type": "NFC"}, {"type": "Lowercase"}
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
        yield form, {"normalizer": {"type": form}}
    for left in (False, True):
        for right in (False, True):
            yield f"strip {left} {right}", {"normalizer": {
                "type": "Strip", "strip_left": left, "strip_right": right}}
    yield "strip accents of NFD", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFD"}, lower, {"type": "StripAccents"}]}}
    yield "replace regex", {"normalizer": {"type": "Replace", "pattern": {"Regex": "\\s+|b*"},
                                           "content": "-"}}
    yield "replace string", {"normalizer": {"type": "Replace", "pattern": {"String": "aa"},
                                            "content": "bc"}}
    yield "prepend", {"normalizer": {"type": "Prepend", "prepend": BAR}}
    patterns = [("regex", {"Regex": "\\s+"}), ("word", {"Regex": "\\w+"}), ("string", {"String": "b"}),
                ("empty", {"Regex": "b*"}), ("digits", {"Regex": "\\p{N}{1,3}|[a-c&&[^b]]"}),
                ("lines", {"Regex": "^a|b$|(?m:c.)"}), ("nested", {"Regex": "[[:alpha:]\\W&&[^a1]]+"}),
                ("property", {"Regex": "\\p{Letter}\\p{^Han}|\\h\\H|\\bab\\b|\\p{Hiragana}"})]
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for name, pattern in patterns:
            for invert in (False, True):
                yield f"split {name} {behavior} {invert}", {"pre_tokenizer": {
                    "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}}
        yield f"punctuation {behavior}", {"pre_tokenizer": {"type": "Punctuation", "behavior": behavior}}
    for individual in (False, True):
        yield f"digits {individual}", {"pre_tokenizer": {"type": "Digits",
                                                         "individual_digits": individual}}
    for name in ("Whitespace", "WhitespaceSplit"):
        yield name, {"pre_tokenizer": {"type": name}}
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            metaspace = {"type": "Metaspace", "replacement": BAR, "prepend_scheme": scheme, "split": cut}
            yield f"metaspace {scheme} {cut}", {"pre_tokenizer": metaspace, "decoder": metaspace}
    for prefix in (False, True):
        for regex in (False, True):
            level = byte_level(prefix, True, regex)
            yield f"byte level {prefix} {regex}", {"pre_tokenizer": level, "decoder": level,
                                                   "bytes": True}
    yield "byte level inside", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        byte_level(), {"type": "Digits", "individual_digits": True}]}, "decoder": byte_level(),
        "bytes": True}
    yield "digits, byte level", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
        byte_level()]}, "decoder": byte_level(), "bytes": True, "ignore_merges": True}
    yield "fused unknown", {"fuse_unk": True}
    yield "no unknown", {"unk_token": None}
    yield "byte fallback", {"byte_fallback": True, "fuse_unk": True, "decoder": {
        "type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}
    yield "ignored merges", {"ignore_merges": True, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    yield "subword marks", {"continuing_subword_prefix": "##", "end_of_word_suffix": "</w>",
                            "pre_tokenizer": {"type": "Whitespace"}}
    yield "strip per token", {"decoder": {"type": "Strip", "content": "a", "start": 1, "stop": 1}}
    for start, stop in ((2, 0), (0, 2), (1, 3)):
        yield f"strip all {start} {stop}", {"decoder": {"type": "Sequence", "decoders": [
            {"type": "Fuse"}, {"type": "Strip", "content": "a", "start": start, "stop": stop}]}}
    yield "replace in decoder", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "b+"}, "content": "<b>"}, {"type": "Fuse"},
        {"type": "Replace", "pattern": {"String": "c"}, "content": "cc"}]}}
    yield "template", {"post": {"type": "Sequence", "processors": [
        byte_level(), {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                  {"SpecialToken": {"id": "many", "type_id": 0}},
                                  {"Sequence": {"id": "A", "type_id": 0}},
                                  {"SpecialToken": {"id": "<s>", "type_id": 0}}], "pair": [
                                      {"Sequence": {"id": "A", "type_id": 0}},
                                      {"Sequence": {"id": "B", "type_id": 0}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                                          "many": {"id": "many", "ids": [5, 6],
                                                   "tokens": ["a", "b"]}}}]}}
    for flag in ("lstrip", "rstrip", "single_word", "normalized"):
        for special in (False, True):
            token = added_token(2, "<tok>", special)
            word = added_token(3, "cab", special)
            token[flag] = word[flag] = True
            yield f"added {flag} {special}", {"added": [token, word], "normalizer": lower,
                                              "pre_tokenizer": {"type": "WhitespaceSplit"}}
    yield "added, prepended", {"added": [added_token(2, "<tok>", True), added_token(3, "cab", False, True)],
                               "normalizer": {"type": "Sequence", "normalizers": [
                                   {"type": "Prepend", "prepend": BAR}, nfc]},
                               "decoded": False}  # the reference shows the normalised token
    metaspace = {"type": "Metaspace", "replacement": BAR, "prepend_scheme": "first", "split": True}
    yield "added, metaspace first", {"added": [added_token(2, "<tok>", True)], "decoder": metaspace,
                                     "pre_tokenizer": metaspace}


COMPONENT_ALPHABET = "abcAB1\u0662 .,-_!\n\t\u00e9\u0308\u4e2d\u3042" + BAR
COMPONENT_PIECES = [*COMPONENT_ALPHABET, "\u0130", "\ufb01", "\u212b", "\u00a0", "\U0001f600", "<tok>", "cab",
                    "aa", "aab", "  ", "12345", "\u0301", "\u3002", "\r\n", "\u1e69", "x"]


def component_tokenizer(parts):
    parts = dict(parts)
    vocab = {"<unk>": 0, "<s>": 1, "<tok>": 2, "cab": 3}
    merges = []

    def add(token):
        vocab.setdefault(token, len(vocab))

    prefix, suffix = parts.get("continuing_subword_prefix"), parts.get("end_of_word_suffix")
    characters = byte_alphabet().values() if parts.pop("bytes", False) else COMPONENT_ALPHABET
    for character in characters:
        add(character)
        if prefix:
            for token in (prefix + character, character + suffix, prefix + character + suffix):
                add(token)
    if parts.get("byte_fallback"):
        for byte in range(256):
            add(f"<0x{byte:02X}>")
    for left, right in ["aa", "ab", ("ab", "c"), ("aa", "ab"), "bb", "12", (BAR, "a"), (BAR, "ab"),
                        ("\u0120", "a"), ("\u0120", "ab"), (" ", "a"), "Ab"]:
        if left in vocab and right in vocab:
            add(left + right)
            if prefix:
                for a, b in ((left, right), (left, right + suffix), (prefix + left, right)):
                    add(a + b)
                    add(prefix + b)
                    merges.append([a, prefix + b])
            else:
                merges.append([left, right])
    parts.setdefault("unk_token", "<unk>")
    arguments = {"added": [], "pre_tokenizer": None, "decoder": None, **parts}
    return tokenizer_json(vocab, merges, **arguments)


def components(out):
    import tokenizers

    def decode(model, ids, skip):
        try:
            return model.decode(ids, skip_special_tokens=skip)
        except BaseException:  # the reference panics where Strip takes more than there is
            return None

    rng = random.Random(99)
    cases = []
    for name, parts in component_variants():
        decodes = parts.pop("decoded", True)
        definition = component_tokenizer(parts)
        model = tokenizers.Tokenizer.from_str(json.dumps(definition))
        texts = ["", " ", "ab", "caab aab", "a\nb\nc\n"]
        texts += ["".join(rng.choices(COMPONENT_PIECES, k=rng.randint(1, 14))) for _ in range(60)]
        encoded = [model.encode(text).ids for text in texts]
        decoded = [decode(model, ids, False) if decodes else None for ids in encoded]
        visible = [decode(model, ids, True) if decodes else None for ids in encoded]
        model.encode_special_tokens = True
        plain = [model.encode(text, add_special_tokens=False).ids for text in texts]
        cases.append({"name": name, "tokenizer": definition, "texts": texts, "ids": encoded,
                      "plain_ids": plain, "decoded": decoded, "visible": visible})
    write_gz(out / "components.json.gz", cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("vocabularies")
    command.add_argument("source", type=pathlib.Path)
    command.add_argument("out", type=pathlib.Path)
    command = commands.add_parser("oracle")
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("--sample", type=pathlib.Path, help="tokenizer.json of the sample model")
    command.add_argument("texts", nargs="+")
    command = commands.add_parser("components")
    command.add_argument("out", type=pathlib.Path)
    command = commands.add_parser("tiktoken")
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("--sample", type=pathlib.Path, required=True, help="tokenizer.json of the sample model")
    arguments = parser.parse_args()
    if arguments.command == "vocabularies":
        vocabularies(arguments.source, arguments.out)
    elif arguments.command == "components":
        components(arguments.out)
    elif arguments.command == "tiktoken":
        tiktoken_vectors(arguments.out, arguments.sample)
    else:
        oracle(arguments.out, arguments.texts, arguments.sample)


if __name__ == "__main__":
    main()
