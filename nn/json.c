/* SPDX-License-Identifier: Apache-2.0 */
/* Just enough JSON to read headers, parsed strictly (RFC 8259). */
#include "nn/json.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "nn/utf8.h"
#include "tensor/memory_internal.h"

bool trek_json_fail(const trek_json *json, const char *what)
{
    trek_fail(TREK_ERR_FORMAT, "%s: byte %zu of the text: %s", json->path, (size_t)(json->at - json->start), what);
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
    char what[] = "' ' was expected";
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
            return trek_json_fail(json, "four hexadecimal digits were expected");
        *value = *value << 4 | digit;
    }
    return true;
}

/* Reads what follows "\u": one code point, with surrogate pairs joined. */
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
        return trek_json_fail(json, "an escape that is not a character");
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
        return trek_json_fail(json, "an integer that is not negative was expected");
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
        return trek_json_fail(json, "a plain integer was expected");
    return true;
}

/* --- numbers ------------------------------------------------------------------------ */

static bool digits(trek_json *json)
{
    const char *from = json->at;
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9')
        json->at++;
    return json->at > from || trek_json_fail(json, "a digit was expected");
}

static bool passes(trek_json *json, char wanted)
{
    bool there = json->at < json->end && *json->at == wanted;
    json->at += there;
    return there;
}

/* Reads the text of a number according to the grammar. */
static bool number_text(trek_json *json, bool *whole)
{
    trek_json_peek(json);
    passes(json, '-');
    if (!passes(json, '0') && !digits(json))
        return false;
    *whole = true;
    if (passes(json, '.')) {
        *whole = false;
        if (!digits(json))
            return false;
    }
    if (!passes(json, 'e') && !passes(json, 'E'))
        return true;
    *whole = false;
    if (!passes(json, '+'))
        passes(json, '-');
    return digits(json);
}

bool trek_json_number(trek_json *json, double *value, bool *whole, int64_t *integer)
{
    char text[64];
    trek_json_peek(json);
    const char *from = json->at, *point = localeconv()->decimal_point;
    if (!number_text(json, whole))
        return false;
    size_t length = (size_t)(json->at - from), used = 0;
    if (length >= sizeof text / 2 || strlen(point) > sizeof text / 4)
        return trek_json_fail(json, "a number of too many digits");
    for (size_t k = 0; k < length; k++)
        if (from[k] == '.')
            used += (size_t)(stpcpy(text + used, point) - (text + used));
        else
            text[used++] = from[k];
    text[used] = 0;
    *value = strtod(text, NULL);
    errno = 0;
    *integer = *whole ? strtoll(text, NULL, 10) : 0;
    if (errno != 0)
        *whole = false, *integer = 0;
    return true;
}

/* --- what is passed over -------------------------------------------------------------- */

bool trek_json_literal(trek_json *json, int *value)
{
    static const struct { const char *text; int value; } known[] = { { "true", 1 }, { "false", 0 }, { "null", -1 } };
    trek_json_peek(json);
    for (int k = 0; k < 3; k++) {
        size_t length = strlen(known[k].text);
        if ((size_t)(json->end - json->at) < length || memcmp(json->at, known[k].text, length) != 0)
            continue;
        json->at += length;
        *value = known[k].value;
        return true;
    }
    return trek_json_fail(json, "true, false or null was expected");
}

static bool skip_string(trek_json *json)
{
    char *string;
    bool read = trek_json_string_new(json, &string);
    trek_free(string);
    return read;
}

static bool skip_number(trek_json *json)
{
    bool whole;
    return number_text(json, &whole);
}

/* This keeps a stack of closing characters instead of recursing. */
bool trek_json_skip(trek_json *json)
{
    char closing[64];
    int depth = 0, ignored;
    bool more;
    do {
        char *key = NULL, first;
        if (depth > 0 && closing[depth - 1] == '}') {
            if (!trek_json_key_new(json, &key))
                return false;
            trek_free(key);
        }
        first = trek_json_peek(json);
        more = false;
        if (first == '{' || first == '[') {
            if (depth == (int)sizeof closing)
                return trek_json_fail(json, "the nesting is too deep");
            json->at++;
            closing[depth++] = first == '{' ? '}' : ']';
            if (!trek_json_first(json, closing[depth - 1], &more))
                return false;
            depth -= !more;
        } else if (!(first == '"'                                           ? skip_string(json)
                     : first == '-' || (first >= '0' && first <= '9') ? skip_number(json)
                                                                            : trek_json_literal(json, &ignored))) {
            return false;
        }
        while (depth > 0 && !more) { /* a complete value is an item of what encloses it */
            if (!trek_json_next(json, closing[depth - 1], &more))
                return false;
            depth -= !more;
        }
    } while (depth > 0);
    return true;
}

/* --- writing ------------------------------------------------------------------------- */

void trek_json_string(trek_text *out, const char *string)
{
    trek_text_add(out, "\"");
    for (const char *p = string; *p; p++) {
        const char *from = p;
        while (*p && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
            p++;
        trek_text_bytes(out, from, (size_t)(p - from));
        if (!*p)
            break;
        if (*p == '"' || *p == '\\')
            trek_text_format(out, "\\%c", *p);
        else
            trek_text_format(out, "\\u%04x", (unsigned)(unsigned char)*p);
    }
    trek_text_add(out, "\"");
}
