/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a safetensors file. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nn/checksum.h"
#include "nn/json.h"
#include "nn/replace_file.h"
#include "nn/safetensors.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

/* --- the header ---------------------------------------------------------------------- */

static void write_pair(trek_text *out, const char *key, const char *text)
{
    trek_json_string(out, key);
    trek_text_add(out, ":");
    trek_json_string(out, text);
}

static void write_aliases(trek_text *out, const trek_state *state)
{
    trek_text list = { 0 };
    trek_text_add(&list, "{");
    for (int k = 0; k < state->n_aliases; k++) {
        trek_text_add(&list, k > 0 ? "," : "");
        write_pair(&list, state->aliases[k].name, state->entries[state->aliases[k].entry].name);
    }
    trek_text_add(&list, "}");
    trek_text_add(out, ",");
    if (list.failed)
        out->failed = true;
    else
        write_pair(out, TREK_SAFETENSORS_ALIASES, list.data);
    trek_text_clear(&list);
}

/* Writes zeros, which are replaced once the data is written. */
static void write_seal(trek_text *out, int tensors)
{
    trek_text_add(out, ",\"" TREK_SAFETENSORS_CHECKSUM "\":\"" TREK_SAFETENSORS_SEAL "0000000000000000");
    for (int k = 0; k < tensors; k++)
        trek_text_add(out, " 0000000000000000");
    trek_text_add(out, "\"");
}

static bool is_own(const char *key)
{
    return strcmp(key, "format") == 0 || strcmp(key, TREK_SAFETENSORS_ALIASES) == 0 ||
        strcmp(key, TREK_SAFETENSORS_CHECKSUM) == 0;
}

/* "format": "pt" tells other programs that names and layouts are PyTorch's, which they are. */
static void write_metadata(trek_text *out, const trek_state *state, bool sealed)
{
    trek_text_add(out, "\"__metadata__\":{\"format\":\"pt\"");
    if (sealed)
        write_seal(out, state->n_entries); /* first, so that no other text can be taken for it */
    for (int k = 0; k < state->n_notes; k++) {
        if (is_own(state->notes[k].key))
            continue;
        trek_text_add(out, ",");
        write_pair(out, state->notes[k].key, state->notes[k].text);
    }
    if (state->n_aliases > 0)
        write_aliases(out, state);
    trek_text_add(out, "}");
}

/* Sorts wide elements first, so that every tensor is aligned to its elements, and otherwise keeps the order. */
static trek_status data_order(const trek_state *state, int **order)
{
    int count = 0;
    *order = trek_calloc((size_t)state->n_entries + 1, sizeof **order);
    if (!*order)
        return TREK_ERR_MEMORY;
    for (size_t size = 8; size > 0; size /= 2)
        for (int k = 0; k < state->n_entries; k++)
            if (trek_dtype_size(trek_state_entry_dtype(&state->entries[k])) == size)
                (*order)[count++] = k;
    return TREK_OK;
}

static uint64_t entry_bytes(const trek_state_entry *entry)
{
    return (uint64_t)trek_shape_numel(trek_state_entry_shape(entry)) * trek_dtype_size(trek_state_entry_dtype(entry));
}

static void write_header(trek_text *out, const trek_state *state, const int *order, bool sealed)
{
    uint64_t at = 0;
    trek_text_add(out, "{");
    write_metadata(out, state, sealed);
    for (int k = 0; k < state->n_entries; k++) {
        const trek_state_entry *entry = &state->entries[order[k]];
        trek_shape shape = trek_state_entry_shape(entry);
        uint64_t end = at + entry_bytes(entry);
        trek_text_add(out, ",");
        trek_json_string(out, entry->name);
        trek_text_format(out, ":{\"dtype\":\"%s\",\"shape\":[", trek_safetensors_dtype(trek_state_entry_dtype(entry)));
        for (int d = 0; d < shape.ndim; d++)
            trek_text_format(out, "%s%" PRId64, d > 0 ? "," : "", shape.sizes[d]);
        trek_text_format(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, end);
        at = end;
    }
    trek_text_add(out, "}");
    while (!out->failed && (8 + out->length) % 64 != 0)
        trek_text_add(out, " ");
}

static void write_prefix(unsigned char prefix[8], const trek_text *header)
{
    for (int k = 0; k < 8; k++)
        prefix[k] = (unsigned char)((uint64_t)header->length >> 8 * k);
}

/* Writes the header, and finds the order of the data. The caller frees both, also after a failure. */
static trek_status lay_out(const trek_state *state, bool sealed, const char *path, trek_text *header, int **order)
{
    trek_status status = data_order(state, order);
    if (status != TREK_OK)
        return status;
    write_header(header, state, *order, sealed);
    if (header->failed)
        return TREK_ERR_MEMORY;
    return header->length <= TREK_SAFETENSORS_MAX_HEADER
        ? TREK_OK
        : trek_fail(TREK_ERR_ARGUMENT, "%s: the names are too long for a safetensors header", path);
}

/* --- the file -------------------------------------------------------------------------- */

trek_status trek_safetensors_write_bytes(int file, const void *data, uint64_t bytes, uint64_t offset, const char *path)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t put = pwrite(file, from, bytes < (1u << 30) ? (size_t)bytes : (1u << 30), (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return trek_fail_system(path, "write");
        from += put;
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return TREK_OK;
}

/* Sums and writes in small parts, so that the data is read only once from memory. */
static trek_status sum_and_write(int file, const unsigned char *data, uint64_t bytes, uint64_t offset, const char *path,
                                 char *digits)
{
    trek_checksum sum;
    trek_status status = TREK_OK;
    trek_checksum_begin(&sum);
    for (uint64_t at = 0, part; at < bytes && status == TREK_OK; at += part) {
        part = bytes - at < TREK_SAFETENSORS_PART ? bytes - at : TREK_SAFETENSORS_PART;
        trek_checksum_add(&sum, data + at, (size_t)part);
        status = trek_safetensors_write_bytes(file, data + at, part, offset + at, path);
    }
    trek_checksum_write(trek_checksum_end(&sum), digits);
    return status;
}

/* Returns the bytes of an entry, in one piece on the CPU: its own, where they are. */
static trek_tensor *flat_of(const trek_state_entry *entry)
{
    trek_tensor *tensor = trek_state_entry_read(entry);
    trek_tensor *host = tensor ? trek_tensor_to(tensor, trek_tensor_device(tensor).type == TREK_CPU ? trek_tensor_device(tensor)
                                       : trek_cpu(0)) : NULL;
    trek_tensor *flat = host ? trek_tensor_readable(host) : NULL;
    trek_tensor_release(host);
    trek_tensor_release(tensor);
    return flat;
}

static trek_status write_tensor(int file, const trek_state_entry *entry, uint64_t offset, const char *path, char *digits)
{
    trek_tensor *flat = flat_of(entry);
    trek_status status = flat ? sum_and_write(file, trek_tensor_data(flat), entry_bytes(entry), offset, path, digits)
        : trek_error_status();
    trek_tensor_release(flat);
    return status;
}

/* Writes the data first, because its checksums belong in the header. */
static trek_status write_parts(int file, const trek_state *state, const int *order, trek_text *header, const char *path)
{
    unsigned char prefix[8];
    trek_status status = TREK_OK;
    char *seal = trek_safetensors_seal(header->data, header->length);
    uint64_t at = sizeof prefix + header->length;
    for (int k = 0; k < state->n_entries && status == TREK_OK; k++) {
        const trek_state_entry *entry = &state->entries[order[k]];
        status = write_tensor(file, entry, at, path, seal + TREK_CHECKSUM_DIGITS + 1 + (size_t)k * (1 + TREK_CHECKSUM_DIGITS));
        at += entry_bytes(entry);
    }
    trek_checksum_write(trek_safetensors_header_checksum(header->data, header->length, seal), seal);
    write_prefix(prefix, header);
    if (status == TREK_OK)
        status = trek_safetensors_write_bytes(file, prefix, sizeof prefix, 0, path);
    return status == TREK_OK ? trek_safetensors_write_bytes(file, header->data, header->length, sizeof prefix, path) : status;
}

static trek_status write_content(int file, const trek_state *state, const char *path)
{
    trek_text header = { 0 };
    int *order = NULL;
    trek_status status = lay_out(state, true, path, &header, &order);
    if (status == TREK_OK)
        status = write_parts(file, state, order, &header, path);
    trek_text_clear(&header);
    trek_free(order);
    return status;
}

trek_status trek_state_write_file(const trek_state *state, int file, const char *name)
{
    return write_content(file, state, name);
}

trek_status trek_state_write(const trek_state *state, const char *path)
{
    trek_file_replacement replacement;
    if (!state || !path)
        return trek_fail_missing("state_write", state ? "path" : "state");
    trek_status status = trek_replace_begin(&replacement, path);
    return status == TREK_OK ? trek_replace_end(&replacement, write_content(replacement.file, state, path)) : status;
}

/* --- the same in memory ------------------------------------------------------------------ */

static trek_status add_tensors(trek_state_image *image, const trek_state *state, const int *order)
{
    for (int k = 0; k < state->n_entries; k++) {
        const trek_state_entry *entry = &state->entries[order[k]];
        trek_state_part *part = &image->parts[image->n];
        part->name = entry->name;
        part->tensor = flat_of(entry);
        if (!part->tensor)
            return trek_error_status();
        part->data = trek_tensor_data(part->tensor);
        part->source = entry->tensor ? trek_tensor_data(entry->tensor) : NULL;
        part->begin = image->bytes;
        part->bytes = (int64_t)entry_bytes(entry);
        image->bytes += part->bytes;
        image->n++;
    }
    return TREK_OK;
}

trek_status trek_state_image_make(trek_state_image *image, const trek_state *state)
{
    unsigned char prefix[8];
    trek_text header = { 0 };
    int *order = NULL;
    *image = (trek_state_image){ .parts = trek_calloc((size_t)state->n_entries + 1, sizeof *image->parts) };
    trek_status status = image->parts ? lay_out(state, false, "the state", &header, &order) : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        write_prefix(prefix, &header);
        trek_text_bytes(&image->head, (const char *)prefix, sizeof prefix);
        trek_text_bytes(&image->head, header.data, header.length);
        image->bytes = (int64_t)image->head.length;
        status = image->head.failed ? TREK_ERR_MEMORY : add_tensors(image, state, order);
    }
    trek_text_clear(&header);
    trek_free(order);
    return status;
}

void trek_state_image_clear(trek_state_image *image)
{
    for (int k = 0; k < image->n; k++)
        trek_tensor_release(image->parts[k].tensor);
    trek_free(image->parts);
    trek_text_clear(&image->head);
    *image = (trek_state_image){ .n = 0 };
}
