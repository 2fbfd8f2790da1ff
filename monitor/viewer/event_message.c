/* SPDX-License-Identifier: Apache-2.0 */
/* The encoding of protobuf messages (see its encoding documentation). */
#include <string.h>

#include "monitor/viewer/event_internal.h"

enum { VARINT = 0, WIDE = 1, BYTES = 2, NARROW = 5 };

void trek_event_little(trek_text *out, uint64_t value, int bytes)
{
    char text[8];
    for (int k = 0; k < bytes; k++)
        text[k] = (char)(value >> (8 * k) & 255);
    trek_text_bytes(out, text, (size_t)bytes);
}

static void add_varint(trek_text *out, uint64_t value)
{
    for (; value > 127; value >>= 7)
        trek_text_bytes(out, (const char[]){ (char)((value & 127) | 128) }, 1);
    trek_text_bytes(out, (const char[]){ (char)value }, 1);
}

static void add_key(trek_text *out, int field, int kind) { add_varint(out, (uint64_t)(field << 3 | kind)); }

void trek_event_whole(trek_text *out, int field, int64_t value)
{
    add_key(out, field, VARINT);
    add_varint(out, (uint64_t)value);
}

static void add_wide(trek_text *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    trek_event_little(out, bits, 8);
}

void trek_event_double(trek_text *out, int field, double value)
{
    add_key(out, field, WIDE);
    add_wide(out, value);
}

void trek_event_float(trek_text *out, int field, double value)
{
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    add_key(out, field, NARROW);
    trek_event_little(out, bits, 4);
}

static void add_bytes(trek_text *out, int field, const char *bytes, size_t count)
{
    add_key(out, field, BYTES);
    add_varint(out, count);
    trek_text_bytes(out, bytes, count);
}

void trek_event_string(trek_text *out, int field, const char *text) { add_bytes(out, field, text, strlen(text)); }

void trek_event_message(trek_text *out, int field, trek_text *message)
{
    out->failed |= message->failed;
    add_bytes(out, field, message->data ? message->data : "", message->length);
    trek_text_clear(message);
}

void trek_event_packed(trek_text *out, int field, const double *values, int n)
{
    add_key(out, field, BYTES);
    add_varint(out, (uint64_t)n * 8);
    for (int k = 0; k < n; k++)
        add_wide(out, values[k]);
}
