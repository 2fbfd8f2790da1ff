/* SPDX-License-Identifier: Apache-2.0 */
/* Reading IDX files, plain or gzip'd, and whole files. Sizes claimed by a file are compared with what it can hold,
 * and memory grows only as data arrives. */
#include "data/idx_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "data/image_sets.h"
#include "data/unpack_internal.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

/* Reads to the end, at most `most` bytes (0: no limit), into memory that doubles as data comes. One byte more than
 * `most` is requested, so that *length > most reveals excess data, and so that the checksum behind the data is
 * verified. */
static trek_status read_growing(trek_unpack *r, size_t most, unsigned char **bytes, size_t *length)
{
    size_t capacity = 1u << 16, used = 0;
    if (most && most + 1 < capacity)
        capacity = most + 1;
    unsigned char *memory = trek_alloc(capacity);
    trek_status status = memory ? TREK_OK : TREK_ERR_MEMORY;
    while (status == TREK_OK) {
        size_t got = 0;
        status = trek_unpack_read(r, memory + used, capacity - used, &got);
        used += got;
        if (status != TREK_OK || used < capacity || (most && used > most))
            break;
        size_t more = capacity > SIZE_MAX / 2 ? SIZE_MAX : capacity * 2;
        if (most && more > most + 1)
            more = most + 1;
        unsigned char *grown = trek_realloc(memory, more);
        if (!grown) {
            status = TREK_ERR_MEMORY;
            break;
        }
        memory = grown;
        capacity = more;
    }
    if (status != TREK_OK) {
        trek_free(memory);
        return status;
    }
    *bytes = memory;
    *length = used;
    return TREK_OK;
}

static size_t element_size(unsigned char type)
{
    switch (type) {
    case 0x08:
    case 0x09: return 1;
    case 0x0B: return 2;
    case 0x0C:
    case 0x0D: return 4;
    case 0x0E: return 8;
    default: return 0;
    }
}

static trek_status read_header(trek_unpack *r, trek_idx *idx)
{
    unsigned char head[4], sizes[4 * TREK_MAX_DIMS];
    size_t got = 0;
    trek_status status = trek_unpack_read(r, head, sizeof(head), &got);
    if (status != TREK_OK)
        return status;
    if (got < sizeof(head))
        return trek_fail(TREK_ERR_FORMAT, "%s: the file ends after %zu bytes, inside its header", r->path, got);
    idx->element = element_size(head[2]);
    if (head[0] != 0 || head[1] != 0 || idx->element == 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: it begins with %02x %02x %02x %02x; it is not an IDX file", r->path, head[0],
                         head[1], head[2], head[3]);
    if (head[3] > TREK_MAX_DIMS)
        return trek_fail(TREK_ERR_FORMAT, "%s: %d dimensions; must be at most %d", r->path, head[3], TREK_MAX_DIMS);
    idx->type = head[2];
    idx->shape = trek_dims_none();
    idx->shape.ndim = head[3];
    status = trek_unpack_read(r, sizes, 4u * head[3], &got);
    if (status != TREK_OK)
        return status;
    if (got < 4u * head[3])
        return trek_fail(TREK_ERR_FORMAT, "%s: the file ends inside its header", r->path);
    for (int d = 0; d < head[3]; d++)
        idx->shape.sizes[d] = (int64_t)sizes[4 * d] << 24 | (int64_t)sizes[4 * d + 1] << 16 | (int64_t)sizes[4 * d + 2] << 8 |
                              (int64_t)sizes[4 * d + 3];
    return TREK_OK;
}

/* Computes the number of bytes that the header promises, if the file can hold them: deflate expands one byte to at
 * most 1032. */
static trek_status promised_bytes(trek_unpack *r, const trek_idx *idx, size_t *promised)
{
    char text[TREK_SHAPE_TEXT];
    size_t bytes = idx->element;
    bool empty = false, overflow = false;
    for (int d = 0; d < idx->shape.ndim; d++) {
        size_t size = (size_t)idx->shape.sizes[d];
        empty |= size == 0;
        overflow |= size > 0 && bytes > (size_t)PTRDIFF_MAX / size;
        bytes = overflow || empty ? bytes : bytes * size;
    }
    if (empty) {
        *promised = 0;
        return TREK_OK;
    }
    struct stat info;
    bool packed = trek_unpack_is_packed(r);
    bool known = stat(r->path, &info) == 0 && S_ISREG(info.st_mode);
    if (overflow || (known && bytes / (packed ? 1032 : 1) > (size_t)info.st_size + 1024))
        return trek_fail(TREK_ERR_FORMAT, "%s: the header promises %s elements of %zu bytes, more than the file can hold",
                         r->path,
                         trek_shape_format(idx->shape, text, sizeof text), idx->element);
    *promised = bytes;
    return TREK_OK;
}

static trek_status read_body(trek_unpack *r, trek_idx *idx)
{
    size_t promised = 0, length = 0;
    trek_status status = promised_bytes(r, idx, &promised);
    if (status != TREK_OK)
        return status;
    unsigned char *bytes = NULL;
    status = read_growing(r, promised ? promised : 1, &bytes, &length);
    if (status != TREK_OK)
        return status;
    char text[TREK_SHAPE_TEXT];
    trek_shape_format(idx->shape, text, sizeof text);
    if (length < promised)
        status = trek_fail(TREK_ERR_FORMAT, "%s: the file ends after %zu of %zu bytes of data (%s): truncated", r->path, length,
                           promised, text);
    else if (length > promised)
        status = trek_fail(TREK_ERR_FORMAT, "%s: the file holds more than the %zu bytes of data that the header promises (%s)",
                           r->path, promised, text);
    if (status != TREK_OK)
        trek_free(bytes);
    else
        idx->bytes = bytes;
    return status;
}

trek_status trek_idx_load(const char *path, trek_idx *idx)
{
    memset(idx, 0, sizeof(*idx));
    trek_unpack r;
    trek_status status = trek_unpack_open(&r, path);
    if (status != TREK_OK)
        return status;
    status = read_header(&r, idx);
    if (status == TREK_OK)
        status = read_body(&r, idx);
    trek_unpack_close(&r);
    return status;
}

trek_status trek_file_load(const char *path, bool packed, unsigned char **bytes, size_t *length)
{
    trek_unpack r;
    trek_status status = trek_unpack_open(&r, path);
    if (status != TREK_OK)
        return status;
    if (!packed && trek_unpack_is_packed(&r))
        status = trek_fail(TREK_ERR_FORMAT, "%s: it is compressed with gzip; must be uncompressed, since it is mapped", path);
    if (status == TREK_OK)
        status = read_growing(&r, 0, bytes, length);
    trek_unpack_close(&r);
    return status;
}

char *trek_path_join(const char *folder, const char *name)
{
    size_t length = strlen(folder);
    bool slash = length > 0 && folder[length - 1] != '/';
    return trek_format("%s%s%s", folder, slash ? "/" : "", name);
}

/* -- as a tensor ------------------------------------------------------------ */

static uint64_t big_endian(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

static void convert(const trek_idx *idx, int64_t count, void *to)
{
    int32_t *ints = to;
    uint32_t *words = to;
    uint64_t *longs = to;
    for (int64_t i = 0; i < count; i++) {
        uint64_t value = big_endian(idx->bytes + (size_t)i * idx->element, idx->element);
        if (idx->type == 0x09)
            ints[i] = (int8_t)(uint8_t)value;
        else if (idx->type == 0x0B)
            ints[i] = (int16_t)(uint16_t)value;
        else if (idx->element == 4) /* i32 and f32: the same bits */
            words[i] = (uint32_t)value;
        else
            longs[i] = value;
    }
}

trek_tensor *trek_idx_read(const char *path)
{
    if (!path) {
        trek_fail_missing("idx_read", "path");
        return NULL;
    }
    trek_idx idx;
    if (trek_idx_load(path, &idx) != TREK_OK)
        return NULL;
    trek_dtype dtype = idx.type == 0x08 ? TREK_U8 : idx.type == 0x0D ? TREK_F32 : idx.type == 0x0E ? TREK_F64 : TREK_I32;
    trek_tensor *tensor = trek_tensor_empty(idx.shape, dtype, trek_cpu(0));
    if (tensor && trek_tensor_numel(tensor) > 0) {
        int64_t count = trek_tensor_numel(tensor);
        if (dtype == TREK_U8)
            memcpy(trek_tensor_data(tensor), idx.bytes, (size_t)count);
        else
            convert(&idx, count, trek_tensor_data(tensor));
    }
    trek_free(idx.bytes);
    return tensor;
}
