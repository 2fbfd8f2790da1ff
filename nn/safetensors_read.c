/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a safetensors file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/checksum.h"
#include "nn/replace_file.h"
#include "nn/safetensors.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static trek_status fail_system(const char *path, const char *what)
{
    char text[128];
    return trek_fail(TREK_ERR_IO, "%s: %s: %s", path, what, strerror_r(errno, text, sizeof text));
}

static trek_status read_bytes(int file, void *data, uint64_t bytes, uint64_t offset, const char *path)
{
    char *to = data;
    while (bytes > 0) {
        size_t part = bytes < (1u << 30) ? (size_t)bytes : (1u << 30);
        ssize_t got = pread(file, to, part, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_system(path, "read");
        if (got == 0)
            return trek_fail(TREK_ERR_IO, "%s: the file became shorter while it was read", path);
        to += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TREK_OK;
}

/* The same, in parts that are still near when they are summed up. */
static trek_status read_and_sum(int file, unsigned char *data, uint64_t bytes, uint64_t offset, const char *path,
                                uint64_t *checksum)
{
    trek_checksum sum;
    trek_status status = TREK_OK;
    trek_checksum_begin(&sum);
    for (uint64_t at = 0, part; at < bytes && status == TREK_OK; at += part) {
        part = bytes - at < TREK_SAFETENSORS_PART ? bytes - at : TREK_SAFETENSORS_PART;
        status = read_bytes(file, data + at, part, offset + at, path);
        if (status == TREK_OK)
            trek_checksum_add(&sum, data + at, (size_t)part);
    }
    *checksum = trek_checksum_end(&sum);
    return status;
}

/* digits: of its checksum; NULL: the file has none. */
static trek_status read_data(int file, const trek_safetensors_item *item, unsigned char *data, uint64_t data_start,
                             const char *digits,
                             const char *path)
{
    uint64_t bytes = item->end - item->begin, found, noted;
    if (!digits)
        return read_bytes(file, data, bytes, data_start + item->begin, path);
    trek_status status = read_and_sum(file, data, bytes, data_start + item->begin, path, &found);
    if (status != TREK_OK)
        return status;
    return trek_checksum_read(digits, &noted) && trek_checksum_holds(found, noted)
               ? TREK_OK
               : trek_fail(TREK_ERR_FORMAT, "%s: its checksum does not match: the file is damaged (the data of %s)", path,
                           item->name);
}

static trek_status read_tensor(int file, const trek_safetensors_item *item, uint64_t data_start, const char *digits,
                               const char *path,
                               trek_state *state)
{
    if (trek_state_lookup(state, item->name) >= 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: the name %s stands there twice", path, item->name);
    trek_tensor *tensor = trek_tensor_empty(item->shape, item->dtype, trek_cpu(0));
    if (!tensor)
        return trek_error_status();
    unsigned char *data = trek_tensor_data(tensor);
    trek_status status = read_data(file, item, data, data_start, digits, path);
    for (uint64_t k = 0; status == TREK_OK && item->dtype == TREK_BOOL && k < item->end - item->begin; k++)
        if (data[k] > 1)
            status = trek_fail(TREK_ERR_FORMAT, "%s: %s: a bool that is neither 0 nor 1", path, item->name);
    if (status == TREK_OK)
        status = trek_state_add(state, item->name, tensor);
    trek_tensor_release(tensor);
    return status;
}

/* The header's length and text; *text is a new string. */
static trek_status read_header(int file, uint64_t size, const char *path, uint64_t *length, char **text)
{
    unsigned char prefix[8];
    if (size < sizeof prefix)
        return trek_fail(TREK_ERR_FORMAT, "%s: too short for a safetensors file", path);
    trek_status status = read_bytes(file, prefix, sizeof prefix, 0, path);
    if (status != TREK_OK)
        return status;
    *length = 0;
    for (int k = 7; k >= 0; k--)
        *length = *length << 8 | prefix[k];
    if (*length > TREK_SAFETENSORS_MAX_HEADER || *length > size - sizeof prefix)
        return trek_fail(TREK_ERR_FORMAT, "%s: no safetensors file: a header of %llu bytes does not fit", path,
                         (unsigned long long)*length);
    *text = trek_alloc((size_t)*length + 1);
    if (!*text)
        return TREK_ERR_MEMORY;
    return read_bytes(file, *text, *length, sizeof prefix, path);
}

/* *seal: the digits of a header that is as it was written; NULL: it carries no checksum. */
static trek_status check_header(char *text, size_t length, const char *path, char **seal)
{
    uint64_t noted;
    *seal = trek_safetensors_seal(text, length);
    if (!*seal)
        return TREK_OK;
    bool read = trek_checksum_read(*seal, &noted);
    if (!read || !trek_checksum_holds(trek_safetensors_header_checksum(text, length, *seal), noted))
        return trek_fail(TREK_ERR_FORMAT,
                         "%s: its checksum does not match: the file is damaged (its header), or another program has "
                         "changed it and kept the text " TREK_SAFETENSORS_CHECKSUM,
                         path);
    return TREK_OK;
}

/* One checksum for each tensor: 17 bytes each, between the header's and the end of the text. */
static trek_status check_digits(const trek_safetensors_header *header, const char *text, size_t length, const char *seal,
                                const char *path,
                                trek_state *state)
{
    bool noted = trek_state_text(state, TREK_SAFETENSORS_CHECKSUM) != NULL;
    size_t need = TREK_CHECKSUM_DIGITS + (size_t)header->n_items * (1 + TREK_CHECKSUM_DIGITS);
    bool good = seal && (size_t)(text + length - seal) > need && seal[need] == '"';
    if (noted != (seal != NULL) || (seal && !good))
        return trek_fail(TREK_ERR_FORMAT,
                         "%s: the text " TREK_SAFETENSORS_CHECKSUM " is damaged, or another program has written it", path);
    state->checked = seal != NULL;
    trek_safetensors_drop_text(state, TREK_SAFETENSORS_CHECKSUM);
    return TREK_OK;
}

static const char *digits_of(const char *seal, int k)
{
    return seal ? seal + TREK_CHECKSUM_DIGITS + 1 + (size_t)k * (1 + TREK_CHECKSUM_DIGITS) : NULL;
}

static trek_status read_file(int file, const char *path, trek_state *state)
{
    struct stat info;
    if (fstat(file, &info) != 0)
        return fail_system(path, "stat");
    if (!S_ISREG(info.st_mode))
        return trek_fail(TREK_ERR_IO, "%s: is no regular file", path);
    uint64_t size = (uint64_t)info.st_size, length = 0;
    char *text = NULL, *seal = NULL;
    trek_safetensors_header header = { 0 };
    trek_status status = read_header(file, size, path, &length, &text);
    if (status == TREK_OK)
        status = check_header(text, (size_t)length, path, &seal);
    if (status == TREK_OK)
        status = trek_safetensors_parse(text, (size_t)length, size - 8 - length, path, &header, state);
    if (status == TREK_OK)
        status = check_digits(&header, text, (size_t)length, seal, path, state);
    for (int k = 0; k < header.n_items && status == TREK_OK; k++)
        status = read_tensor(file, &header.items[k], 8 + length, digits_of(seal, k), path, state);
    if (status == TREK_OK)
        status = trek_safetensors_read_aliases(state, path);
    trek_safetensors_header_clear(&header);
    trek_free(text);
    return status;
}

trek_state *trek_state_read(const char *path)
{
    if (!path) {
        trek_fail_missing("state_read", "path");
        return NULL;
    }
    trek_state *state = trek_state_new();
    if (!state)
        return NULL;
    trek_replace_tidy(path);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to hang on a pipe */
    trek_status status = file < 0 ? fail_system(path, "open") : read_file(file, path, state);
    if (file >= 0)
        close(file);
    if (status != TREK_OK)
        trek_state_free(&state);
    return state;
}
