# SPDX-License-Identifier: Apache-2.0
"""What the public headers declare: functions, structs and enumerations, read from their text, so that
a function that is new is known here as soon as it is declared."""
import ctypes
import pathlib
import re

root = pathlib.Path(__file__).resolve().parents[2]
SCALARS = {
    "void": None, "char": ctypes.c_char, "uint8_t": ctypes.c_uint8, "bool": ctypes.c_bool, "int": ctypes.c_int, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32, "double": ctypes.c_double, "float": ctypes.c_float, "size_t": ctypes.c_size_t,
}
OFF = -1  # TREK_OFF


class Unknown(Exception):
    """A type that the reader of headers does not know."""


def text_of(header):
    return (root / header).read_text()


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


class Function:
    """A prototype: its name, the type it gives, and [(type, name)] of what it takes."""

    def __init__(self, name, result, params, header):
        self.name, self.result, self.params, self.header = name, result, params, header


class Headers:
    def __init__(self, *names):
        self.functions, self.structs, self.enums, self.opaque = {}, {}, {}, set()
        for name in names:
            self.read(name)

    def read(self, header):
        text = re.sub(r"^\s*#(?:[^\n\\]|\\\n|\\.)*", "", without_comments(text_of(header)), flags=re.M)
        for body, name in re.findall(r"typedef enum \w+ \{([^}#]*)\} (\w+);", text):
            values, at = {}, 0
            for item in filter(None, (part.strip() for part in body.split(","))):
                key, _, given = item.partition("=")
                at = int(given) if given.strip() else at
                values[key.strip()] = at
                at += 1
            self.enums[name] = values
        if "TREK_DTYPE_LIST" in text_of(header):
            self.enums["trek_dtype"] = {"TREK_" + n: k for k, n in enumerate(re.findall(r"^\s*X\((\w+), \w+, \d", text_of(header), flags=re.M))}
            self.enums["trek_device_type"] = {"TREK_DEVICE_UNSET": 0, "TREK_CPU": 1, "TREK_CUDA": 2}
        if "TREK_STATUS_LIST" in text_of(header):
            names = re.findall(r"^\s*X\((\w+), \"", text_of(header), flags=re.M)
            self.enums["trek_status"] = {"TREK_OK": 0, **{"TREK_ERR_" + n: k + 1 for k, n in enumerate(names)}}
        self.opaque |= set(re.findall(r"typedef struct (\w+) \1;", text))
        for name in re.findall(r"typedef [\w\s]+[\s\*]\(\*(\w+)\)\(", text):  # a callback
            SCALARS[name] = ctypes.c_void_p
        for name, body, same in re.findall(r"typedef struct (\w+) \{(.*?)\n\} (\w+);", text, flags=re.S):
            if "(*" not in body:  # callbacks: nothing that is drawn
                self.structs[same] = self.struct(same, body)
        for old, new in re.findall(r"typedef (\w+) (\w+);", text):
            if old in self.structs:
                self.structs[new] = self.structs[old]
        for result, name, params in re.findall(r"TREK_API\s+([\w\s\*]+?)\s*(\btrek_\w+)\(([^;]*?)\);", text):
            self.functions[name] = Function(name, " ".join(result.replace("*", " * ").split()), self.params(params), header)

    def params(self, text):
        found = []
        text = re.sub(r"\w+ \(\*(\w+)\)\([^)]*\)", r"void *\1", text)  # a callback
        for part in (p.strip() for p in text.split(",")):
            if part in ("void", "...", "") or part.startswith("TREK_"):
                continue
            match = re.fullmatch(r"(.*?)(\w+)", part, flags=re.S)
            kind = " ".join(match.group(1).replace("*", " * ").split())
            found.append((kind, match.group(2)) if kind else (part, ""))
        return found

    def struct(self, name, body):
        body = body.replace("unsigned char", "uint8_t")
        union = re.search(r"union \{(.*?)\} (\w+);", body, flags=re.S)
        fields = []
        if union:
            body = body.replace(union.group(0), f"__union__ {union.group(2)};")
        for line in filter(None, (part.strip() for part in body.split(";"))):
            kind, rest = re.match(r"((?:const\s+)?\w+\s*)(.*)", line, flags=re.S).groups()
            kind = kind.replace("const", "").strip()
            for item in (part.strip() for part in rest.split(",")):
                stars, field, count = re.match(r"((?:\*(?:const)?\s*)*)(\w+)(?:\[(\w+)\])?$", item).groups()
                if kind == "__union__":
                    fields.append((field, type(name + "_union", (ctypes.Union,), {"_fields_": [
                        (f, self.type(k)) for k, f in self.params(union.group(1).replace(";", ",").strip().rstrip(","))]})))
                    continue
                made = ctypes.c_void_p if stars else self.type(kind)
                if count:
                    made = made * (int(count) if count.isdigit() else {"TREK_MAX_DIMS": 8, "TREK_SCHEDULE_MILESTONES": 16, "TREK_SCHEDULE_PARTS": 6, "TREK_UPDATE_OPTIONS": 16}[count])
                fields.append((field, made))
        return type(name, (ctypes.Structure,), {"_fields_": fields})

    def type(self, kind):
        """The ctypes type of a C type."""
        kind = kind.replace("const ", "").replace(" const", "").strip()
        if kind in SCALARS:
            return SCALARS[kind]
        if kind in self.enums:
            return ctypes.c_int
        if kind in self.structs:
            return self.structs[kind]
        if kind == "char *":
            return ctypes.c_char_p
        if kind.endswith("*"):
            return ctypes.c_void_p
        raise Unknown(kind)



def real_zero():
    """TREK_ZERO: a real zero where 0 means a default."""
    high, low = re.search(r"#define TREK_ZERO \((-\d+) - (\d+)\)", text_of("tensor/common.h")).groups()
    return int(high) - int(low)


ZERO = real_zero()
