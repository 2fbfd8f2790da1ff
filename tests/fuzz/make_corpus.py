#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes corpus/NAME/...: small inputs for each program, made of real files (by fuzz_seeds, and beginnings of data sets).
    usage: make_corpus.py <path of fuzz_seeds> [folder with mnist/, else digits are drawn from a formula]"""
import gzip
import pathlib
import struct
import subprocess
import sys
import tempfile

corpus = pathlib.Path(__file__).parent / "corpus"


def put(program, name, data):
    folder = corpus / program
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def without_checksum(data):
    """The same bytes under a name and a mark that nobody looks for; a checkpoint of version 1."""
    return data.replace(b'"trek.checksum":"trek-xxh64 ', b'"other.writer!":"TREK-XXH64 ').replace(b'"trek.checkpoint":"2"', b'"trek.checkpoint":"1"')


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
put("plan", "by-hand", f"trek-plan 1\nranks 2\n0 shares {HALF} {HALF}\n5 counts 3 1 3\nend 2\n")
put("plan", "none", "trek-plan 1\nranks 1048576\nend 0\n")

put("json", "object", '{"a":1,"b":[2,3,{"c":"d"}],"e":[],"f":{}}')
put("json", "escapes", r'["\"\\\/\b\f\n\r\t","\u00e9\ud83d\ude00","caf' + "é" + '"]')
put("json", "numbers", "[0,1,9223372036854775807]")
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
