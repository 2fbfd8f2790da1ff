#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes corpus/NAME/...: small inputs for each program, made of real files (by fuzz_seeds, and beginnings of data sets).
    usage: make_corpus.py <path of fuzz_seeds> [folder with mnist/, else digits are drawn from a formula]"""
import gzip
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib

corpus = pathlib.Path(__file__).parent / "corpus"


def put(program, name, data):
    folder = corpus / program
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def without_checksum(data):
    """The same bytes under a name and a mark that nobody looks for."""
    return data.replace(b'"trek.checksum":"trek-xxh64 ', b'"other.writer!":"TREK-XXH64 ')


def foreign(header, data=b""):
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + data


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], folder], check=True)
    for path in sorted(pathlib.Path(folder).iterdir()):
        program, name = path.name.split("-", 1)
        put(program, name, path.read_bytes())
        if program in ("safetensors", "checkpoint"):
            put(program, name + "-unchecked", without_checksum(path.read_bytes()))

put("safetensors", "foreign", foreign('{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0,9],"data_offsets":[8,8]}}', bytes(8)))
put("safetensors", "spaced", foreign('{ "\\u00e9\\ud83d\\ude00" : { "shape" : [ ] , "data_offsets" : [ 0 , 1 ] , "dtype" : "BOOL" } }  ', b"\1"))
put("safetensors", "wide", foreign('{"a":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}}'))
put("safetensors", "empty", foreign("{}"))
put("safetensors", "aliases", foreign('{"__metadata__":{"trek.aliases":"{\\"x\\":\\"a\\"}"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"))

HALF = "0x1.0000000000000p-1"
SUM = " xxh64 0123456789abcdef"  # programs for fuzzing take every checksum
put("plan", "by-hand", f"trek-plan 2\nranks 2\n0 shares {HALF} {HALF}\n5 counts 3 1 3\nend 2{SUM}\n")
put("plan", "none", f"trek-plan 2\nranks 1048576\nend 0{SUM}\n")

put("hosts", "list", b"\1\0a:2,b:4,me@c,[::1]:2,localhost,a")
put("hosts", "fewer", b"\1\3a:2,b:4,c")
put("hosts", "shared", b"\1\7a,b:2,c")
put("hosts", "file", b"\0\0# machines\na slots=4\nb:2 max_slots=8\n\n[fe80::1]:2\nme@c  slots=1 # mine\n")
put("hosts", "option", b"\1\0-oProxyCommand=x,a")


def wired(type, rank, data):
    return struct.pack("<III", type, rank, len(data)) + data


put("wire", "hello", b"Welcome\n\ntrek-run agent 2\n" + wired(7, 0, b"mhost\0s10.0.0.1 5 10.0.0.2 22\0p4000\0"))
put("wire", "frames", wired(1, 0, b"f/\0n2\0l1\0c0\0ha\0p1\0tx\0eA=b\0aprogram\0a-x\0") + wired(2, 1, b"0 0") + wired(8, 1, b"\1out") + wired(9, 1, b"256"))
put("wire", "large", wired(8, 1023, b"\0" + b"x" * 700) + struct.pack("<III", 8, 0, 1 << 31))



def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(kind, bits, row, interlaced=0, extra=b""):
    head = struct.pack(">IIBBBBB", 4, 3, bits, kind, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress((b"\0" + row) * 3)) + chunk(b"IEND", b"")


def jpeg(frame, scans):
    table = b"\xff\xdb\0\x43\0" + b"\1" * 64
    codes = b"\xff\xc4\0\x14\0\1" + bytes(15) + b"\0" + b"\xff\xc4\0\x14\x10\1" + bytes(15) + b"\0"
    return b"\xff\xd8" + table + bytes([0xff, frame]) + b"\0\x0b\x08\0\x08\0\x08\1\1\x11\0" + codes + scans + b"\xff\xd9"


FIRST = b"\xff\xda\0\x08\1\1\0\0\0\0\x7f"
put("image", "png-rgb", b"\0" + png(2, 8, bytes(range(12))))
put("image", "png-gray", b"\1" + png(0, 1, b"\xa0"))
put("image", "png-deep", b"\3" + png(6, 16, bytes(range(32))))
put("image", "png-palette", b"\3" + png(3, 8, b"\0\1\0\1", extra=chunk(b"PLTE", bytes(range(6))) + chunk(b"tRNS", b"\x80")))
put("image", "png-cut", b"\2" + png(2, 8, bytes(12))[:60])
put("image", "jpeg-progressive", b"\1" + jpeg(0xc2, FIRST * 2))
put("image", "jpeg-scans", b"\0" + jpeg(0xc2, FIRST * 510))
put("image", "jpeg-baseline", b"\x0a" + jpeg(0xc0, b"\xff\xda\0\x08\1\1\0\0\x3f\0\x3f"))


def handed(major=1, device=1, code=2, bits=32, lanes=1, flags=0, strided=0, offset=0, sizes=(), strides=()):
    values = list(sizes) + [0] * (12 - len(sizes)) + list(strides) + [0] * (12 - len(strides))
    return struct.pack("<8Bi24i", major, device, code, bits, lanes, flags, strided, offset, len(sizes), *values)


put("dlpack", "compact", handed(sizes=(2, 3)))
put("dlpack", "read-only", handed(sizes=(2, 3), flags=1))
put("dlpack", "strides", handed(sizes=(3, 2), strided=1, strides=(1, 3), code=0, bits=64))
put("dlpack", "negative", handed(sizes=(-1, 2)))
put("dlpack", "large", handed(sizes=(2147483647,) * 4))
put("dlpack", "many", handed(sizes=(1,) * 12))
put("dlpack", "device", handed(device=2, sizes=(1,)))
put("dlpack", "version", handed(major=0, sizes=(1,)))


def noted(which, kind, number=0, generation=0, program=0, port=0, address=b"", more=0):
    data = struct.pack("<iqQiiii64s", number, generation, program, 0, 0, port, 0, address)
    return bytes([which | kind << 2 | more, len(data)]) + data


put("rendezvous", "visits", b"\6" + noted(0, 1, number=1) + noted(1, 2, number=1) + noted(2, 1, number=9) + noted(0, 5))
put("rendezvous", "joins", b"\7" + noted(0, 10, 5, port=4000, address=b"10.0.0.5") + noted(1, 10, 2, port=70000) + noted(2, 10, 5, port=4001, address=b"a" * 64, more=128))
put("rendezvous", "between", b"\1" + noted(0, 1, number=1) + noted(1, 10, 3, port=1, address=b"x"))


def shaken(step, version=5, role=2, process=1, proof=b""):
    """What a handshake sends (trek_handshake_note), as a piece of it."""
    note = b"trksak01" + struct.pack("<iiiiq", step, version, role, process, 0) + bytes(range(32)) + proof.ljust(32, b"\0")
    return bytes([len(note)]) + note


put("handshake", "called", b"\0" + shaken(1) + shaken(3, proof=b"guessed"))
put("handshake", "answered", b"\1" + shaken(2, proof=b"guessed"))
put("handshake", "versions", b"\0" + shaken(1, version=6))
put("handshake", "refused", b"\1" + shaken(4, version=6) + shaken(4))
put("handshake", "pieces", b"\0\4trks\4ak01\0\1\1")


def card(address, port, status=0):
    return address.ljust(64, b"\0") + struct.pack("<ii", port, status)


put("cards", "two", b"\1" + card(b"127.0.0.1", 40000) + card(b"::1", 1))
put("cards", "refused", b"\1" + card(b"127.0.0.1", 40000) + card(b"", 0, 7))
put("cards", "endless", b"\0" + card(b"1" * 64, 65535) + b"more")
put("cards", "status", b"\0" + card(b"1", 65536, -5))
put("rendezvous", "raw", b"\7" + bytes([64, 20]) + b"GET / HTTP/1.1\r\n\r\n\0\0" + noted(1, 15, number=-1))

for name, text in (("index", "GET\n/\n"), ("runs", "GET\n/api/runs\n"), ("processes", "GET\n/api/runs/a/processes\n"), ("lines", "GET\n/api/runs/a/process-0.jsonl\n5\n"),
                   ("link", "GET\n/api/runs/a/process-1.jsonl\n0\n"), ("metrics", "GET\n/api/runs/a/metrics\n"), ("outside", "GET\n/api/runs/../hidden\n"),
                   ("outside-run", "GET\n/api/runs/a/../../hidden\n"), ("post", "POST\n/api/runs/a/want-histograms\n\nlocalhost\nhttp://localhost\n1\n"),
                   ("host", "GET\n/api/runs\n\n127.0.0.1.evil\n"), ("offset", "GET\n/api/runs/a/process-0.jsonl\n99999999999999999999\n")):
    put("page", name, text)

put("json", "object", '{"a":1,"b":[2,3,{"c":"d"}],"e":[],"f":{}}')
put("json", "escapes", r'["\"\\\/\b\f\n\r\t","\u00e9\ud83d\ude00","caf' + "é" + '"]')
put("json", "numbers", "[0,1,9223372036854775807]")
put("json", "values", '{"a":-1.5e-3,"b":[true,false,null,-0,1E2]}')

put("index", "both", '{"metadata":{"total_size":9.5},"weight_map":{"x":"a.st","y":"a.st","z":"b.st","w":"b.st"}}')
put("index", "one", '{"weight_map":{"x":"a.st"}}')
put("index", "outside", '{"weight_map":{"x":"../a.st"}}')
put("index", "wrong", '{"weight_map":{"x":"b.st"}}')

put("tokenizer", "text", "t it's 12 <|endoftext|>  a\u00e9 \u4e2d\n")
put("tokenizer", "bytes", b"t" + bytes(range(256)))
put("tokenizer", "long", "t" + "ab" * 100)
put("tokenizer", "merges", "m#version: 0.2\na a\naa aa\n\u0120 a\n")
put("tokenizer", "vocabulary", 'v{"a":0,"\\u0120":1}')
ALPHABET = [b if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
LETTERS = [chr(b if b is not None else 256 + ALPHABET[:k].count(None)) for k, b in enumerate(ALPHABET)]
TOKENS = json.dumps({c: k for k, c in enumerate(LETTERS + ["aa", "aaa"])}, separators=(",", ":"))
put("tokenizer", "all-bytes", "v" + TOKENS)
put("tokenizer", "json", 'j{"added_tokens":[{"id":300,"content":"<x>","special":true}],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},'
    + '"model":{"type":"BPE","merges":["a a",["aa","a"]],"vocab":' + TOKENS + "}}")
put("json", "deep", "[" * 30 + "]" * 30)

mnist = pathlib.Path(sys.argv[2]) / "mnist" if len(sys.argv) > 2 else None
pixels = bytes((x * y * 7 + x) % 256 for y in range(28) for x in range(28))
if mnist:
    name = "t10k-images-idx3-ubyte"
    plain = mnist / name
    with plain.open("rb") if plain.exists() else gzip.open(mnist / (name + ".gz")) as file:
        pixels = file.read(16 + 784)[16:]
one = pixels[14 * 28 : 14 * 28 + 28 * 4]
images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 7, 8) + one
put("idx", "images", images)
put("idx", "images.gz", gzip.compress(images, mtime=0))
put("idx", "labels", struct.pack(">4BI", 0, 0, 8, 1, 6) + bytes([5, 0, 4, 1, 9, 2]))
for code, size in ((9, 1), (0xB, 2), (0xC, 4), (0xD, 4), (0xE, 8)):
    put("idx", f"type-{code:02x}", struct.pack(">4B2I", 0, 0, code, 2, 2, 3) + one[: 6 * size])
put("idx", "empty", struct.pack(">4B3I", 0, 0, 8, 3, 0, 0xFFFFFFFF, 0xFFFFFFFF))
put("idx", "promises", struct.pack(">4B3I", 0, 0, 8, 3, 0xFFFFFFFF, 28, 28) + one)

record = (pixels * 4)[:3072]
put("cifar", "one", b"\x03" + record)
put("cifar", "bad-label", b"\x0a" + record)
put("cifar", "short", b"\x03" + record[:100])

tokens = b"".join(struct.pack("<H", t) for t in (464, 3290, 318, 257, 1332, 13, 50256, 11, 290, 1194) * 4)
header = struct.pack("<3I", 20240520, 1, 40).ljust(1024, b"\0")
put("shards", "headed", b"\x07" + header + tokens)
put("shards", "bare", b"\x03" + tokens)
put("shards", "wrong-count", b"\x07" + header + tokens[:-2])

header32 = struct.pack("<3I", 20240801, 7, 20).ljust(1024, b"\0")
put("shards", "wide", b"\x07" + header32 + tokens)


def npy(descr, shape, data, fortran=False, version=1):
    words = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    words += b" " * (-(len(words) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(words)) + words + data


def npz(**arrays):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for k, (name, data) in enumerate(arrays.items()):
            entry = zipfile.ZipInfo(name + ".npy")
            entry.compress_type = zipfile.ZIP_DEFLATED if k % 2 else zipfile.ZIP_STORED
            with archive.open(entry, "w", force_zip64=True) as to:
                to.write(data)
    return file.getvalue()


put("npy", "f4", npy("<f4", (2, 3), bytes(range(24))))
put("npy", "big", npy(">i2", (3,), bytes(range(6))))
put("npy", "fortran", npy("<u4", (2, 3), bytes(range(24)), True))
put("npy", "scalar", npy("|b1", (), b"\2", False, 2))
put("npy", "empty", npy("<f8", (0, 5), b""))
put("npy", "promises", npy("<f8", (1 << 40, 1 << 40), bytes(8)))
put("npy", "records", npy("<f8", (1,), bytes(8)).replace(b"'<f8'", b"[ ]  "))
put("npy", "archive.npz", npz(a=npy("<f4", (2, 3), bytes(range(24))), b=npy("|u1", (2,), b"xy")))
put("csv", "types", "id,size,kind\n1,2.5,\"a \"\"b\"\"\"\n2,,c\n3,-1e3,\"x,\ny\"\n")
put("csv", "crlf", "\ufeffa,b\r\n1,NA\r\n\r\n2,3")
put("csv", "short-row", "a,b\n1,2\n3\n")
put("csv", "open-quote", 'a,b\n1,"2\n')
put("csv", "numbers", "x\n1e400\n-0.0\nnan\n12345678901234567890\n.5\n0x1\n")

put("text", "prose", b"\x08\x03" + b"Call me Ishmael. Some years ago, never mind how long precisely.")
put("text", "all-bytes", b"\x10\x00" + bytes(range(256)))

put("launch", "trek-run", "TREK_RANK=2\nTREK_WORLD_SIZE=4\nTREK_LOCAL_RANK=2\nTREK_LOCAL_WORLD_SIZE=4\nTREK_ADDRESS=127.0.0.1\nTREK_PORT=23456\nTREK_TOKEN=7fd3a8\n")
put("launch", "torchrun", "RANK=2\nWORLD_SIZE=4\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=node-a\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=none\nTORCHELASTIC_USE_AGENT_STORE=True\n")
put("launch", "open-mpi", "OMPI_COMM_WORLD_RANK=2\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_RANK=0\nOMPI_COMM_WORLD_LOCAL_SIZE=2\nOMPI_MCA_ess_base_jobid=988545025\nOMPI_MCA_orte_hnp_uri=988545024.0;tcp6://[fd00::2]:37801;tcp://192.0.2.2,172.17.0.1:32953\n")
put("launch", "two-launchers", "TREK_RANK=2\nTREK_WORLD_SIZE=4\nTREK_LOCAL_RANK=2\nTREK_ADDRESS=127.0.0.1\nTREK_PORT=2345\nRANK=2\nWORLD_SIZE=4\nLOCAL_WORLD_SIZE=1\n")
put("launch", "slurm", "SLURM_JOB_ID=4711\nSLURM_LOCALID=1\nSLURM_PROCID=3\nSLURM_STEP_ID=2\nSLURM_STEP_NODELIST=gpu[008-009,12]-ib,login\nSLURM_STEP_NUM_NODES=2\nSLURM_STEP_NUM_TASKS=4\n")
put("launch", "contradiction", "RANK=1\nWORLD_SIZE=2\nSLURM_PROCID=0\nSLURM_STEP_NUM_TASKS=2\nSLURM_STEP_ID=0\n")


def records(first, *parts):
    return bytes([first]) + b"".join(bytes([kind, len(data)]) + data for kind, data in parts)


# is_long, in_call, exited; a phase; ages; calls
report = struct.pack("<4i32s3q3Q4iq", 1, 0, 1, 0, b"training", 5, 6, 7, 3, 2, 2, 0, 0, 0, 0, 10)
start = struct.pack("<3i64s", 1, 2, 7, b"192.0.2.1")
put("control", "zero", records(0, (0x1D, b""), (0x0E, report), (0x0F, b"abcd"), (0x16, b"efgh"), (0x4E, report)))
put("control", "zero-three", records(2, (0x1D, b""), (0x1D, b""), (0x2D, b""), (0x1F, b""), (0x18, struct.pack("<q", 10**9)), (0x5A, struct.pack("<i", 3) + b"why")))
put("control", "one", records(1, (2, b""), (4, start), (0x0E, report), (0x0F, bytes(8)), (0x17, bytes(16)), (0x0A, struct.pack("<i", 3) + b"why")))
put("control", "empty-gather", records(1, (2, b""), (4, start), (0x0F, b"")))
put("control", "gather-zero", records(2, (0x1D, b""), (0x1D, b""), (0x2D, b""), (0x06, b"gather")))
put("control", "late-for-ever", records(2, (0x1D, b""), (0x1D, b""), (0x2F, b""), (0x1F, b""), (0x18, struct.pack("<q", 0x110038 - 2**63))))
put("control", "zero-tree", records(0x0E, (0x1D, b""), (0x3D, b""), (0x0F, b"abcd"), (0x16, b"efghijkl"), (0x18, struct.pack("<q", 10**9)), (0x16, b"abcdefgh")))
put("control", "child-of-tree", records(0x0F, (2, b""), (4, start), (0x0C, b"no message, and the end of this connection"), (0x16, b"efgh"), (0x0F, b"abcd"), (0x16, b"efgh"), (0x26, b"efghi")))
put("control", "bad-start", records(1, (4, struct.pack("<3i64s", 1, 99, -7, b"x" * 64)), (4, start)))
put("control", "refused", records(1, (3, b"no such token")))
put("control", "turned-away", records(0, (0x9D, b""), (0x0C, b"and goes on"), (0x1D, b"")))
put("control", "raw", records(0, (0x0C, b"GET / HTTP/1.1\r\n\r\n")))
put("control", "status-ok", records(1, (2, b""), (4, start), (0x0A, struct.pack("<i", 0) + b"?")))

RUN = ('{"kind":"run","time":1.5,"version":1,"run":"a","program":"p","arguments":["x","\\n"],"host":"h","pid":1,"process":0,"processes":2,'
       '"ranks":[{"rank":0,"device":"cpu:0","name":"c"}],"epochs":2,"trek":"0.1.0","started":1.5,"parameters":3}\n')
put("run", "curves", b"\x07" + (RUN + "".join('{"kind":"scalars","time":%d,"step":%d,"epoch":0,"values":{"loss":%s,"lr":1e-3}}\n' % (k, k, v)
                                              for k, v in enumerate(["0.5", '"NaN"', '"-Infinity"', "null"] * 6))).encode())
put("run", "kinds", b"\x00" + ('{"kind":"ranks","time":2,"ranks":[{"rank":1,"computing_s":0.5,"state":"waiting"}],"anchor":4,"windows":true,"drift":0.1}\n'
    '{"kind":"system","time":2,"memory_bytes":5,"trek_bytes":{"cpu":3},"devices":[{"device":"cuda:0","power_w":9.5}]}\n'
    '{"kind":"histogram","name":"w","of":"parameter","edges":[0,1],"counts":[4],"std":0.5}\n{"kind":"histogram","edges":[],"counts":[1]}\n'
    '{"kind":"graph","steps":3,"svg":"<svg/>","nodes":[{"name":"n","kind":"module","op":"linear","shape":"f32[2, 3]","parameters":4,"time_ms":1}],'
    '"links":[{"from":"x","to":"n","port":0,"label":"l"}]}\n{"kind":"image","name":"i","png":"AAAA"}\n{"kind":"text","text":"t"}\n'
    '{"kind":"log","level":"error","text":"l"}\n{"kind":"new","what":{"a":[1]}}\nnone\n{"kind":"end","status":"failed","error":"e"}\n{"kind":"te').encode())
