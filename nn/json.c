/* SPDX-License-Identifier: Apache-2.0 */
/* Just enough JSON to read headers, strictly (RFC 8259). */
#include "nn/json.h"

#include "nn/utf8.h"
#include "tensor/memory_internal.h"

bool trek_json_fail(const trek_json *json, const char *what)
{
    trek_fail(TREK_ERR_FORMAT, "%s: header, byte %zu: %s", json->path, (size_t)(json->at - json->start), what);
    return false;
}

char trek_json_peek(trek_json *json)
{
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
    return json->at < json->end ? *json->at : 0;
}

bool trek_json_expect(trek_json *json, char wanted)
{
    char what[] = "' ' expected";
    if (trek_json_peek(json) != wanted) {
        what[1] = wanted;
        return trek_json_fail(json, what);
    }
    json->at++;
    return true;
}

bool trek_json_first(trek_json *json, char close, bool *more)
{
    *more = trek_json_peek(json) != close;
    if (!*more)
        json->at++;
    return true;
}

bool trek_json_next(trek_json *json, char close, bool *more)
{
    *more = trek_json_peek(json) == ',';
    if (!*more)
        return trek_json_expect(json, close);
    json->at++;
    return true;
}

static bool hex4(trek_json *json, uint32_t *value)
{
    *value = 0;
    for (int k = 0; k < 4; k++, json->at++) {
        char c = json->at < json->end ? *json->at : 0;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16)
            return trek_json_fail(json, "four hexadecimal digits expected");
        *value = *value << 4 | digit;
    }
    return true;
}

/* After "\u": one code point, a pair of surrogates joined. */
static bool unicode_escape(trek_json *json, trek_text *out)
{
    uint32_t code, low;
    if (!hex4(json, &code))
        return false;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u')
            return trek_json_fail(json, "half a surrogate pair");
        json->at += 2;
        if (!hex4(json, &low))
            return false;
        if (low < 0xDC00 || low > 0xDFFF)
            return trek_json_fail(json, "half a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code == 0 || (code >= 0xDC00 && code <= 0xDFFF)) {
        return trek_json_fail(json, "an escape that is no character");
    }
    char bytes[4];
    trek_text_bytes(out, bytes, trek_utf8_encode(code, bytes));
    return true;
}

static bool escape(trek_json *json, trek_text *out)
{
    char c = json->at < json->end ? *json->at++ : 0, plain;
    switch (c) {
    case '"': case '\\': case '/': plain = c; break;
    case 'b': plain = '\b'; break;
    case 'f': plain = '\f'; break;
    case 'n': plain = '\n'; break;
    case 'r': plain = '\r'; break;
    case 't': plain = '\t'; break;
    case 'u': return unicode_escape(json, out);
    default: return trek_json_fail(json, "an unknown escape");
    }
    trek_text_bytes(out, &plain, 1);
    return true;
}

static bool string_body(trek_json *json, trek_text *out)
{
    for (;;) {
        const char *from = json->at;
        while (json->at < json->end && *json->at != '"' && *json->at != '\\' && (unsigned char)*json->at >= 0x20)
            json->at++;
        if (!trek_utf8_valid(from, (size_t)(json->at - from)))
            return trek_json_fail(json, "a string that is not UTF-8");
        trek_text_bytes(out, from, (size_t)(json->at - from));
        if (json->at == json->end || (unsigned char)*json->at < 0x20)
            return trek_json_fail(json, "a string without an end");
        if (*json->at++ == '"')
            return true;
        if (!escape(json, out))
            return false;
    }
}

bool trek_json_string_new(trek_json *json, char **string)
{
    trek_text out = { 0 };
    *string = NULL;
    if (!trek_json_expect(json, '"'))
        return false;
    if (!string_body(json, &out)) {
        trek_text_clear(&out);
        return false;
    }
    *string = trek_text_take(&out);
    return *string != NULL;
}

bool trek_json_key_new(trek_json *json, char **key)
{
    if (!trek_json_string_new(json, key))
        return false;
    if (trek_json_expect(json, ':'))
        return true;
    trek_free(*key);
    *key = NULL;
    return false;
}

bool trek_json_integer(trek_json *json, int64_t *value)
{
    char first = trek_json_peek(json);
    if (first < '0' || first > '9')
        return trek_json_fail(json, "an integer that is not negative expected");
    *value = 0;
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') {
        int digit = *json->at - '0';
        if (*value > (INT64_MAX - digit) / 10)
            return trek_json_fail(json, "an integer that is too large");
        *value = 10 * *value + digit;
        json->at++;
        if (first == '0')
            break;
    }
    char after = json->at < json->end ? *json->at : 0;
    if ((after >= '0' && after <= '9') || after == '.' || after == 'e' || after == 'E')
        return trek_json_fail(json, "a plain integer expected");
    return true;
}
