/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the header of a safetensors file. Nothing in it is trusted. */
#include <stdlib.h>
#include <string.h>

#include "nn/checksum.h"
#include "nn/json.h"
#include "nn/safetensors.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

#define MAX_NOTES 10000 /* notes are looked up one by one */

static const char *const dtype_names[TREK_DTYPE_COUNT] = {
    [TREK_F32] = "F32", [TREK_F64] = "F64", [TREK_BF16] = "BF16", [TREK_F16] = "F16",
    [TREK_I64] = "I64", [TREK_I32] = "I32", [TREK_U8] = "U8",     [TREK_BOOL] = "BOOL",
};

const char *trek_safetensors_dtype(trek_dtype dtype) { return dtype_names[dtype]; }

void trek_safetensors_header_clear(trek_safetensors_header *header)
{
    for (int k = 0; k < header->n_items; k++)
        trek_free(header->items[k].name);
    trek_free(header->items);
    *header = (trek_safetensors_header){ 0 };
}

/* --- one tensor ------------------------------------------------------------------ */

/* Other dtypes of the format, with their number of bits. */
static const struct { const char *name; int bits; } other_dtypes[] = {
    { "I8", 8 }, { "I16", 16 }, { "U16", 16 }, { "U32", 32 }, { "U64", 64 }, { "C64", 64 }, { "F8_E4M3", 8 }, { "F8_E5M2", 8 },
    { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "F6_E2M3", 6 }, { "F6_E3M2", 6 }, { "F4", 4 },
};

/* Returns 0 if the dtype is not known. */
static int other_bits(const char *name)
{
    for (size_t k = 0; k < sizeof other_dtypes / sizeof *other_dtypes; k++)
        if (strcmp(other_dtypes[k].name, name) == 0)
            return other_dtypes[k].bits;
    return 0;
}

static bool parse_dtype(trek_json *json, trek_safetensors_item *item)
{
    char *name;
    if (!trek_json_string_new(json, &name))
        return false;
    int dtype = 0;
    while (dtype < TREK_DTYPE_COUNT && strcmp(dtype_names[dtype], name) != 0)
        dtype++;
    bool known = dtype < TREK_DTYPE_COUNT, other = !known && *name && strlen(name) < sizeof item->other;
    item->dtype = known ? (trek_dtype)dtype : TREK_U8;
    if (other)
        memcpy(item->other, name, strlen(name) + 1);
    trek_free(name);
    return known || other || trek_json_fail(json, "this is not the name of a dtype");
}

static bool parse_shape(trek_json *json, trek_safetensors_item *item)
{
    bool more;
    item->shape.ndim = 0;
    if (!trek_json_expect(json, '[') || !trek_json_first(json, ']', &more))
        return false;
    while (more) {
        int64_t size;
        if (item->shape.ndim == TREK_MAX_DIMS)
            return trek_json_fail(json, "more dimensions than trek has");
        if (!trek_json_integer(json, &size) || !trek_json_next(json, ']', &more))
            return false;
        item->shape.sizes[item->shape.ndim++] = size;
    }
    return true;
}

static bool parse_offsets(trek_json *json, trek_safetensors_item *item)
{
    int64_t begin, end;
    if (!trek_json_expect(json, '[') || !trek_json_integer(json, &begin) || !trek_json_expect(json, ',') ||
        !trek_json_integer(json, &end) || !trek_json_expect(json, ']'))
        return false;
    item->begin = (uint64_t)begin;
    item->end = (uint64_t)end;
    return true;
}

/* Returns which of the three fields a key is (0, 1 or 2), or -1 for none. */
static int field_of(const char *key)
{
    static const char *const fields[] = { "dtype", "shape", "data_offsets" };
    for (int k = 0; k < 3; k++)
        if (strcmp(key, fields[k]) == 0)
            return k;
    return -1;
}

static bool parse_item(trek_json *json, trek_safetensors_item *item)
{
    static bool (*const parsers[])(trek_json *, trek_safetensors_item *) = { parse_dtype, parse_shape, parse_offsets };
    bool more, seen[3] = { false };
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *key;
        if (!trek_json_key_new(json, &key))
            return false;
        int field = field_of(key);
        trek_free(key);
        if (field < 0 || seen[field])
            return trek_json_fail(json, field < 0 ? "an unknown field of a tensor" : "a field occurs twice");
        seen[field] = true;
        if (!parsers[field](json, item) || !trek_json_next(json, '}', &more))
            return false;
    }
    return (seen[0] && seen[1] && seen[2]) || trek_json_fail(json, "a tensor needs dtype, shape and data_offsets");
}

/* --- the whole header --------------------------------------------------------------- */

/* Parses {"key": "text", ...}. */
static bool parse_metadata(trek_json *json, trek_state *state)
{
    bool more;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *key, *text = NULL;
        if (state->n_notes >= MAX_NOTES)
            return trek_json_fail(json, "more metadata than any file has");
        if (!trek_json_key_new(json, &key))
            return false;
        bool ok = !trek_state_metadata(state, key) || trek_json_fail(json, "a key of __metadata__ occurs twice");
        ok = ok && trek_json_string_new(json, &text) && trek_state_set_metadata(state, key, text) == TREK_OK;
        trek_free(key);
        trek_free(text);
        if (!ok || !trek_json_next(json, '}', &more))
            return false;
    }
    return true;
}

static bool parse_tensor(trek_json *json, const char *name, trek_safetensors_header *header)
{
    if (!*name)
        return trek_json_fail(json, "a tensor without a name");
    if (trek_array_grow(&header->items, &header->cap_items, header->n_items + 1, sizeof *header->items) != TREK_OK)
        return false;
    trek_safetensors_item *item = &header->items[header->n_items];
    *item = (trek_safetensors_item){ .name = trek_strdup(name) };
    if (!item->name)
        return false;
    header->n_items++;
    return parse_item(json, item);
}

static bool parse_header(trek_json *json, trek_safetensors_header *header, trek_state *state)
{
    bool more, metadata = false;
    if (json->at == json->end || *json->at != '{')
        return trek_json_fail(json, "'{' was expected as the first character");
    json->at++;
    trek_json_first(json, '}', &more);
    while (more) {
        char *name;
        if (!trek_json_key_new(json, &name))
            return false;
        bool is_metadata = strcmp(name, "__metadata__") == 0, ok;
        if (is_metadata && metadata)
            ok = trek_json_fail(json, "__metadata__ occurs twice");
        else
            ok = is_metadata ? parse_metadata(json, state) : parse_tensor(json, name, header);
        metadata = metadata || is_metadata;
        trek_free(name);
        if (!ok || !trek_json_next(json, '}', &more))
            return false;
    }
    return trek_json_peek(json) == 0 && json->at == json->end ? true : trek_json_fail(json, "text after the header's end");
}

/* --- do the parts fit together? ------------------------------------------------------- */

static trek_status check_size(const trek_safetensors_item *item, const char *path)
{
    bool overflow = false;
    uint64_t count = 1, bits = (uint64_t)(*item->other ? other_bits(item->other) : 8 * (int)trek_dtype_size(item->dtype));
    for (int d = 0; d < item->shape.ndim; d++)
        if (item->shape.sizes[d] == 0)
            count = 0;
    for (int d = 0; d < item->shape.ndim && count > 0; d++) {
        overflow = overflow || count > (uint64_t)INT64_MAX / 8 / (uint64_t)item->shape.sizes[d];
        count = overflow ? count : count * (uint64_t)item->shape.sizes[d];
    }
    overflow = overflow || (bits > 0 && count > (uint64_t)INT64_MAX / bits);
    if (overflow || item->end < item->begin || (bits > 0 && item->end - item->begin != (count * bits + 7) / 8))
        return trek_fail(TREK_ERR_FORMAT, "%s: %s: data_offsets do not fit its shape and dtype", path, item->name);
    return TREK_OK;
}

static int by_offset(const void *a, const void *b)
{
    const trek_safetensors_item *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks the sorted items: every byte of the data belongs to exactly one tensor. */
static trek_status check_items(trek_safetensors_header *header, uint64_t data_bytes, const char *path)
{
    uint64_t at = 0;
    for (int k = 0; k < header->n_items; k++) {
        trek_status status = check_size(&header->items[k], path);
        if (status != TREK_OK)
            return status;
    }
    if (header->n_items > 0)
        qsort(header->items, (size_t)header->n_items, sizeof *header->items, by_offset);
    for (int k = 0; k < header->n_items; k++) {
        const trek_safetensors_item *item = &header->items[k];
        if (item->begin != at || item->end > data_bytes)
            return trek_fail(TREK_ERR_FORMAT, "%s: %s: its data %s", path, item->name,
                             item->end > data_bytes ? "lies beyond the end of the file"
                             : item->begin < at     ? "overlaps another tensor's"
                                                    : "leaves a gap");
        at = item->end;
    }
    if (at != data_bytes)
        return trek_fail(TREK_ERR_FORMAT, "%s: %llu bytes at the end belong to no tensor", path,
                         (unsigned long long)(data_bytes - at));
    return TREK_OK;
}

void trek_safetensors_drop_text(trek_state *state, const char *key)
{
    for (int k = 0; k < state->n_notes; k++) {
        if (strcmp(state->notes[k].key, key) != 0)
            continue;
        trek_free(state->notes[k].key);
        trek_free(state->notes[k].text);
        state->notes[k] = state->notes[--state->n_notes];
        return;
    }
}

trek_status trek_safetensors_parse(const char *text, size_t length, uint64_t data_bytes, const char *path,
                                   trek_safetensors_header *header, trek_state *state)
{
    trek_json json = { text, text, text + length, path };
    if (!parse_header(&json, header, state))
        return trek_error_status();
    return check_items(header, data_bytes, path);
}

/* --- its checksum --------------------------------------------------------------------- */

/* The checksum is found by its value, which no other text begins with, because damage to its key must not turn the
 * check off. It appears in the raw text as trek writes it; inside another string its quotes would be escaped. */
char *trek_safetensors_seal(char *header, size_t length)
{
    static const char mark[] = ":\"" TREK_SAFETENSORS_SEAL;
    char *found = memmem(header, length, mark, sizeof mark - 1);
    char *seal = found ? found + sizeof mark - 1 : NULL;
    return seal && (size_t)(header + length - seal) > TREK_CHECKSUM_DIGITS ? seal : NULL;
}

uint64_t trek_safetensors_header_checksum(char *header, size_t length, char *seal)
{
    unsigned char prefix[8];
    trek_checksum sum;
    for (int k = 0; k < 8; k++)
        prefix[k] = (unsigned char)((uint64_t)length >> 8 * k);
    memset(seal, '0', TREK_CHECKSUM_DIGITS);
    trek_checksum_begin(&sum);
    trek_checksum_add(&sum, prefix, sizeof prefix);
    trek_checksum_add(&sum, header, length);
    return trek_checksum_end(&sum);
}

/* --- aliases ---------------------------------------------------------------------------- */

trek_status trek_safetensors_read_aliases(trek_state *state, const char *path)
{
    const char *text = trek_state_metadata(state, TREK_SAFETENSORS_ALIASES);
    if (!text)
        return TREK_OK;
    trek_json json = { text, text, text + strlen(text), path };
    bool more, ok = trek_json_expect(&json, '{') && trek_json_first(&json, '}', &more);
    while (ok && more) {
        char *alias, *name = NULL;
        ok = trek_json_key_new(&json, &alias) && trek_json_string_new(&json, &name);
        if (ok && (trek_state_lookup(state, name) < 0 || trek_state_lookup(state, alias) >= 0))
            ok = trek_json_fail(&json, "an alias of a tensor that does not exist, or with a name that is in use already");
        ok = ok && trek_state_add_alias(state, alias, name) == TREK_OK && trek_json_next(&json, '}', &more);
        trek_free(alias);
        trek_free(name);
    }
    if (ok && (trek_json_peek(&json) != 0 || json.at != json.end))
        ok = trek_json_fail(&json, "text after the list of aliases");
    if (!ok)
        return trek_error_status();
    trek_safetensors_drop_text(state, TREK_SAFETENSORS_ALIASES);
    return TREK_OK;
}
