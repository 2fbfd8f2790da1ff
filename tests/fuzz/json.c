/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: strings, integers, and objects and arrays of them, each read from memory that ends where the text ends. */
#include <stdlib.h>
#include <string.h>

#include "nn/json.h"
#include "nn/safetensors.h"
#include "tensor/memory_internal.h"
#include "tests/fuzz/fuzz.h"

#define DEEPEST 40

static bool value(trek_json *json, int depth);

/* A string that was read, written and read again. */
static bool string(trek_json *json)
{
    char *text, *again;
    if (!trek_json_string_new(json, &text))
        return false;
    trek_text out = { 0 };
    trek_json_string(&out, text);
    trek_json written = { out.data, out.data, out.data + out.length, "written" };
    fuzz_expect(trek_json_string_new(&written, &again) && strcmp(text, again) == 0, "a string comes back");
    trek_text_clear(&out);
    trek_free(text);
    trek_free(again);
    return true;
}

static bool items(trek_json *json, char close, int depth)
{
    bool more;
    json->at++;
    if (!trek_json_first(json, close, &more))
        return false;
    while (more) {
        char *key = NULL;
        bool good = (close == ']' || trek_json_key_new(json, &key)) && value(json, depth + 1);
        trek_free(key);
        if (!good || !trek_json_next(json, close, &more))
            return false;
    }
    return true;
}

static bool value(trek_json *json, int depth)
{
    int64_t number;
    char first = trek_json_peek(json);
    if (depth > DEEPEST)
        return trek_json_fail(json, "too deep");
    if (first == '{' || first == '[')
        return items(json, first == '{' ? '}' : ']', depth);
    return first == '"' ? string(json) : trek_json_integer(json, &number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_json json = { (const char *)data, (const char *)data, (const char *)data + size, "input" };
    fuzz_settle(value(&json, 0));
    fuzz_expect(json.at >= json.start && json.at <= json.end, "the place is inside");
    return 0;
}
