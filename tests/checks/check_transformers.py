#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 against transformers and tokenizers: files in parts that either writes, the same logits of the same weights, and the same
tokens of the same texts. Models are small and random, tokenizers are trained here: nothing is fetched.
    usage: check_transformers.py <path of gpt2_tool> <folder of the examples> [file to measure the speed of tokenizers with]
    (needs torch, transformers, tokenizers and safetensors)"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForSequenceClassification

tool, examples = sys.argv[1], pathlib.Path(sys.argv[2])
root = pathlib.Path(__file__).resolve().parent.parent.parent


def run(*arguments):
    result = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, (arguments, result.stderr)
    return result.stdout


# --- weights -----------------------------------------------------------------------------


def logits(folder, ids):
    given, found = folder / "ids.st", folder / "logits.st"
    save_file({"ids": ids}, given)
    run("logits", folder, given, found)
    tensors = load_file(found)
    given.unlink()
    found.unlink()
    return tensors


def small_model(dtype=torch.float32):
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=211, n_positions=48, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).eval().to(dtype)
    with torch.no_grad():
        for p in model.parameters():  # biases and norms, too
            p += 0.1 * torch.randn_like(p)
    return model


def check_weights(folder):
    model = small_model()
    ids = torch.randint(0, 211, (2, 33), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(ids).logits
    for size in ("50KB", "300KB", "5GB"):
        theirs = folder / f"theirs-{size}"
        model.save_pretrained(theirs, max_shard_size=size)
        parts = len(list(theirs.glob("*.safetensors")))
        assert (parts > 1) == (size != "5GB"), parts
        got = logits(theirs, ids)
        for way in ("logits", "mapped"):
            difference = (got[way] - want).abs().max().item()
            assert difference < 2e-5 * want.abs().max().item(), (size, way, difference)

    # And back: in the parts that they would make, loaded by both packages, equal to the bit.
    source = folder / "theirs-300KB"
    ours = folder / "ours"
    ours.mkdir()
    run("save", source, ours, 300000)
    (ours / "config.json").write_bytes((source / "config.json").read_bytes())
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in ours.glob("model-*.safetensors")}
    found = {}
    for name, file in index["weight_map"].items():
        with safe_open(ours / file, "pt") as tensors:
            found[name] = tensors.get_tensor(name)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert set(found) == set(state), sorted(set(found) ^ set(state))
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor), name
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in state.values())
    again = GPT2LMHeadModel.from_pretrained(ours).eval()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, want)


# --- tokens -----------------------------------------------------------------------------------


def texts_of(seed, count):
    """Random strings of assigned characters of every kind, with spaces, contractions and special tokens among them."""
    draw = random.Random(seed)
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    common = [chr(c) for c in range(0x20, 0x250)] + list(" \n\t\r\u00a0\u2003\u3000'") * 12
    spaces = list(" \n\t\r\x0b\x0c\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff")
    parts = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", " the", "<|endoftext|>", "<|endof", "Hello", "2024", "   ", "\n\n"]
    for k in range(count):
        length = draw.choice((0, 1, 2, 5, 20, 60))
        kind = k % 4
        yield "".join(draw.choice(parts) if draw.random() < 0.3 else draw.choice((assigned, common, spaces, common + spaces)[kind]) for _ in range(length))


def ours_of(tokenizer, texts, folder):
    given, found = folder / "texts", folder / "tokens"
    given.write_bytes(b"".join(struct.pack("<I", len(t)) + t for t in (text.encode() for text in texts)))
    run("tokens", tokenizer, given, found)
    numbers = memoryview(found.read_bytes()).cast("I")
    lists, at = [], 0
    while at < len(numbers):
        lists.append(list(numbers[at + 1 : at + 1 + numbers[at]]))
        at += 1 + numbers[at]
    return lists


def trained(corpus, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def check_tokens(folder):
    corpus = [path.read_text(errors="replace") for path in sorted(root.glob("*/*.[ch]"))[:150]] + [path.read_text() for path in root.glob("docs/*.md")]
    corpus += list(texts_of(1, 2000))
    tokenizer = trained(corpus, 6000)
    tokenizer.save(str(folder / "tokenizer.json"))
    two = folder / "two"
    two.mkdir()
    tokenizer.model.save(str(two))
    texts = list(texts_of(2, 20000)) + corpus[:40] + ["a" * 3000, " " * 500 + "x", "\n" * 301, "ab" * 700, "'" * 99]
    want = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    for path in (folder / "tokenizer.json", two):
        got = ours_of(path, texts, folder)
        assert len(got) == len(want)
        for text, a, b in zip(texts, got, want):
            assert a == b, (path.name, text[:200], a[:50], b[:50])
    try:
        from transformers import GPT2Tokenizer

        theirs = GPT2Tokenizer(str(two / "vocab.json"), str(two / "merges.txt"))
    except (TypeError, OSError, ImportError):  # versions differ in how it is made of files
        from transformers import GPT2Tokenizer

        vocabulary = json.loads((two / "vocab.json").read_text())
        merges = [tuple(line.split(" ")) for line in (two / "merges.txt").read_text().split("\n")[1:] if line]
        theirs = GPT2Tokenizer(vocab=vocabulary, merges=merges)
    for text, ids in list(zip(texts, want))[:3000]:
        assert theirs(text)["input_ids"] == ids, text
    return tokenizer, len(texts)


def check_gpt2(folder, tokenizer):
    """examples/gpt2.c writes what transformers' generate() writes, the likeliest token each time, from files of theirs."""
    torch.manual_seed(5)
    size = tokenizer.get_vocab_size()
    config = GPT2Config(vocab_size=size, n_positions=64, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)
    place = folder / "example"
    place.mkdir()
    model.save_pretrained(place)
    tokenizer.model.save(str(place))
    names = {character: byte for byte, character in characters_of_bytes()}
    for prompt in ("Once upon a time", "static int", "\u00e4 day"):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        with torch.no_grad():
            made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, pad_token_id=0)[0].tolist()
        tokens = [tokenizer.id_to_token(k) for k in made[ids.shape[1] :]]
        want = prompt.encode() + b"".join(t.encode() if t == "<|endoftext|>" else bytes(names[c] for c in t) for t in tokens) + b"\n"
        got = subprocess.run([examples / "gpt2", "--model", place, "--prompt", prompt, "--length", "30", "--temperature", "0"], capture_output=True)
        assert got.returncode == 0 and got.stdout == want, (prompt, got.stderr, got.stdout, want)
    again = folder / "exported"
    again.mkdir()
    subprocess.run([examples / "gpt2", "--model", place, "--length", "1", "--export", again], check=True, capture_output=True)
    theirs = GPT2LMHeadModel.from_pretrained(again).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(theirs[name], tensor), name


def check_bert(folder, tokenizer):
    """examples/bert.c sees in texts what transformers' model of the same files sees: a table of its answers is no surprise."""
    torch.manual_seed(7)
    config = RobertaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3)
    model = RobertaForSequenceClassification(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    draw, words = random.Random(1), ("the", "red", "fox", "sees", "tensor", "shape", "of", "loss", "rank", "value")
    texts = [" ".join(draw.choice(words) for _ in range(draw.randint(1, 20))) for _ in range(300)]
    with torch.no_grad():
        answers = torch.cat([model(torch.tensor([[0, *tokenizer.encode(text).ids, 2]])).logits for text in texts])
        middle = answers.median(0).values  # taken off, so that it does not give all texts one class
        model.classifier.out_proj.bias -= middle
    scores, labels = (answers - middle).topk(2)
    rows = [f"{t},{k}" for t, s, k in zip(texts, scores, labels[:, 0].tolist()) if s[0] - s[1] > 1e-4]  # the rest is a matter of rounding
    counts = labels[:, 0].bincount(minlength=3).tolist()
    assert min(counts) > 20 and len(rows) > 200, (counts, len(rows))
    place = folder / "roberta"
    place.mkdir()
    model.save_pretrained(place)
    tokenizer.model.save(str(place))
    table = folder / "answers.csv"
    table.write_text("review,opinion\n" + "\n".join(rows) + "\n")
    done = subprocess.run([examples / "bert", "--model", place, "--data", table, "--text", "review", "--label", "opinion", "--epochs", "1", "--lr", "1e-12", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "test accuracy 1.0000\n", (done.stdout, done.stderr, counts)


def characters_of_bytes():
    """(byte, the character that GPT-2's files have for it)"""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in shown]
    return [(b, chr(b)) for b in shown] + [(b, chr(256 + k)) for k, b in enumerate(others)]


def measure(tokenizer, folder, file):
    text = pathlib.Path(file).read_text(errors="replace")
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        tokenizer.encode(text)
        best = min(best, time.perf_counter() - start)
    pieces = text.splitlines(keepends=True)
    start = time.perf_counter()
    for piece in pieces:
        tokenizer.encode(piece)
    lines = time.perf_counter() - start
    size = len(text.encode())
    print(f"tokenizers: {size / best / 1e6:.1f} MB/s at once, {size / lines / 1e6:.1f} by lines; trek: {run('time', folder / 'tokenizer.json', file).strip()}")


with tempfile.TemporaryDirectory() as name:
    work = pathlib.Path(name)
    check_weights(work)
    made, count = check_tokens(work)
    check_gpt2(work, made)
    check_bert(work, made)
    print(f"transformers reads ours, trek reads theirs; the same tokens of {count} texts")
    if len(sys.argv) > 3:
        measure(made, work, sys.argv[3])
