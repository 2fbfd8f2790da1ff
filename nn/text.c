/* SPDX-License-Identifier: Apache-2.0 */
/* A string that grows. */
#include "nn/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/memory_internal.h"

static bool reserve(trek_text *text, size_t more)
{
    if (text->failed)
        return false;
    if (more > SIZE_MAX / 2 - text->length - 1) {
        text->failed = true;
        trek_fail(TREK_ERR_MEMORY, "text: %zu more bytes do not fit", more);
        return false;
    }
    size_t need = text->length + more + 1;
    if (need <= text->capacity)
        return true;
    size_t capacity = text->capacity ? text->capacity : 256;
    while (capacity < need)
        capacity *= 2;
    char *data = trek_realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void trek_text_bytes(trek_text *text, const char *bytes, size_t count)
{
    if (!reserve(text, count))
        return;
    if (count > 0)
        memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = 0;
}

void trek_text_add(trek_text *text, const char *string) { trek_text_bytes(text, string, strlen(string)); }

void trek_text_format(trek_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int count = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (count < 0 || !reserve(text, (size_t)count))
        return;
    va_start(args, format);
    vsnprintf(text->data + text->length, (size_t)count + 1, format, args);
    va_end(args);
    text->length += (size_t)count;
}

char *trek_text_take(trek_text *text)
{
    trek_text_bytes(text, "", 0);
    char *data = text->failed ? NULL : text->data;
    if (!data)
        trek_text_clear(text);
    *text = (trek_text){ 0 };
    return data;
}

void trek_text_clear(trek_text *text)
{
    trek_free(text->data);
    *text = (trek_text){ 0 };
}

char *trek_text_number(double value, char *buffer)
{
    char raw[64];
    if (value != value || value - value != 0)
        return strcpy(buffer, value != value ? "nan" : value > 0 ? "inf" : "-inf");
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(raw, sizeof raw, "%.*g", digits, value);
        if (strtod(raw, NULL) == value)
            break;
    }
    char *to = buffer;
    for (const char *c = raw; *c; c++)
        if (strchr("0123456789+-e", *c))
            *to++ = *c;
        else if (to == buffer || to[-1] != '.')
            *to++ = '.'; /* the locale's decimal point, which may have several bytes */
    *to = 0;
    return buffer;
}
