/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: strings, numbers, literals, and objects and arrays of them, each read from memory that ends where the text ends. */
#include <stdlib.h>
#include <string.h>

#include "nn/json.h"
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
    int64_t whole_number;
    double number;
    int literal;
    bool whole;
    char first = trek_json_peek(json);
    if (depth > DEEPEST)
        return trek_json_fail(json, "too deep");
    if (first == '{' || first == '[')
        return items(json, first == '{' ? '}' : ']', depth);
    if (first == 't' || first == 'f' || first == 'n')
        return trek_json_literal(json, &literal);
    return first == '"' ? string(json) : trek_json_number(json, &number, &whole, &whole_number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_json json = { (const char *)data, (const char *)data, (const char *)data + size, "input" }, passed = json;
    bool skipped = trek_json_skip(&passed);
    fuzz_settle(skipped);
    bool read = value(&json, 0);
    fuzz_settle(read);
    fuzz_expect(!read || (skipped && passed.at == json.at), "what is passed over is what is read");
    fuzz_expect(json.at >= json.start && json.at <= json.end, "the place is inside");
    return 0;
}
