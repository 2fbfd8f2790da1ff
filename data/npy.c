/* SPDX-License-Identifier: Apache-2.0 */
/* A single array in NumPy's format. Sizes claimed by a header are compared with what can follow before memory is
 * allocated. */
#include "data/npy_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/write_internal.h"
#include "tensor/tensor_internal.h"

enum { MOST_HEADER = 1 << 16 };
static const unsigned char magic[6] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };

typedef struct form {
    char kind;        /* 'f', 'i', 'u' or 'b' */
    int size;         /* bytes of an element in the file */
    bool swapped;     /* its byte order is not this machine's */
    bool fortran;
    trek_shape shape;
    trek_dtype dtype;
} form;

static bool big_endian(void) { return *(const unsigned char *)&(const uint16_t){ 1 } == 0; }

/* --- the header: a Python dictionary ---------------------------------------------- */

typedef struct text {
    const char *at, *end;
} text;

static bool next_is(text *t, const char *word)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t' || *t->at == '\r'))
        t->at++;
    size_t n = strlen(word);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
        return false;
    t->at += n;
    return true;
}

/* Reads a string in single or double quotes, without escapes. */
static bool read_string(text *t, char *to, size_t room)
{
    const char *quote = next_is(t, "'") ? "'" : next_is(t, "\"") ? "\"" : NULL;
    const char *end = quote ? memchr(t->at, *quote, (size_t)(t->end - t->at)) : NULL;
    if (!end || (size_t)(end - t->at) >= room)
        return false;
    memcpy(to, t->at, (size_t)(end - t->at));
    to[end - t->at] = 0;
    t->at = end + 1;
    return true;
}

static bool read_size(text *t, int64_t *size)
{
    next_is(t, "");
    const char *first = t->at;
    *size = 0;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
        if (*size > (INT64_MAX - 9) / 10)
            return false;
        *size = *size * 10 + (*t->at - '0');
    }
    bool some = t->at > first;
    if (some && t->at < t->end && *t->at == 'L') /* from Python 2 */
        t->at++;
    return some;
}

static bool read_shape(text *t, trek_shape *shape)
{
    shape->ndim = 0;
    if (!next_is(t, "("))
        return false;
    while (!next_is(t, ")")) {
        if (shape->ndim == TREK_MAX_DIMS || !read_size(t, &shape->sizes[shape->ndim++]))
            return false;
        if (!next_is(t, ",")) {
            if (shape->ndim == 1 || !next_is(t, ")"))
                return false;
            break;
        }
    }
    return true;
}

static trek_status read_type(const char *name, const char *descr, form *f)
{
    int size = 0;
    char order = descr[0], kind = order ? descr[1] : 0;
    bool whole = kind && sscanf(descr + 2, "%d", &size) == 1;
    f->kind = kind;
    f->size = size;
    f->swapped = size > 1 && (order == '>' ? !big_endian() : order == '<' ? big_endian() : false);
    static const struct {
        char kind;
        int size;
        trek_dtype dtype;
    } types[] = { { 'f', 2, TREK_F16 }, { 'f', 4, TREK_F32 }, { 'f', 8, TREK_F64 }, { 'i', 1, TREK_I32 }, { 'i', 2, TREK_I32 },
                  { 'i', 4, TREK_I32 }, { 'i', 8, TREK_I64 }, { 'u', 1, TREK_U8 }, { 'u', 2, TREK_I32 }, { 'u', 4, TREK_I64 },
                  { 'b', 1, TREK_BOOL } };
    for (size_t k = 0; whole && k < sizeof types / sizeof *types; k++)
        if (types[k].kind == kind && types[k].size == size && strchr("<>|=", order)) {
            f->dtype = types[k].dtype;
            return TREK_OK;
        }
    return trek_fail(TREK_ERR_DTYPE, "%s: an array of type \"%s\", which trek does not have", name, descr);
}

static trek_status read_dictionary(const char *name, text t, form *f)
{
    char key[32], descr[32];
    int found = 0;
    bool good = next_is(&t, "{");
    while (good && !next_is(&t, "}")) {
        good = read_string(&t, key, sizeof key) && next_is(&t, ":");
        if (good && strcmp(key, "descr") == 0) {
            if (next_is(&t, "["))
                return trek_fail(TREK_ERR_DTYPE, "%s: an array of records; must be of numbers", name);
            good = read_string(&t, descr, sizeof descr);
            found |= 1;
        } else if (good && strcmp(key, "fortran_order") == 0) {
            f->fortran = next_is(&t, "True");
            good = f->fortran || next_is(&t, "False");
            found |= 2;
        } else {
            good = good && strcmp(key, "shape") == 0 && read_shape(&t, &f->shape);
            found |= 4;
        }
        if (good && !next_is(&t, ",")) {
            good = next_is(&t, "}");
            break;
        }
    }
    if (!good || found != 7)
        return trek_fail(TREK_ERR_FORMAT, "%s: the header cannot be read, or has more than %d dimensions", name, TREK_MAX_DIMS);
    return read_type(name, descr, f);
}

static trek_status take(trek_npy_source *source, void *to, size_t bytes)
{
    if (bytes > source->left)
        return trek_fail(TREK_ERR_FORMAT, "%s: the file ends early", source->name);
    trek_status status = bytes > 0 ? source->read(source, to, bytes) : TREK_OK;
    source->left -= bytes;
    return status;
}

static trek_status read_header(trek_npy_source *source, form *f)
{
    unsigned char head[12];
    trek_status status = take(source, head, 10);
    if (status == TREK_OK && memcmp(head, magic, sizeof magic) != 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: it is not an array of NumPy", source->name);
    if (status == TREK_OK && (head[6] < 1 || head[6] > 3))
        return trek_fail(TREK_ERR_FORMAT, "%s: NumPy's format %d; must be 1 to 3", source->name, head[6]);
    uint32_t length = status == TREK_OK ? (uint32_t)(head[8] | head[9] << 8) : 0;
    if (status == TREK_OK && head[6] > 1) {
        status = take(source, head + 10, 2);
        length |= status == TREK_OK ? (uint32_t)head[10] << 16 | (uint32_t)head[11] << 24 : 0;
    }
    if (status == TREK_OK && length > MOST_HEADER)
        return trek_fail(TREK_ERR_FORMAT, "%s: a header of %u bytes; must be smaller", source->name, (unsigned)length);
    char *words = status == TREK_OK ? trek_alloc(length + 1) : NULL;
    if (status == TREK_OK)
        status = words ? take(source, words, length) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = read_dictionary(source->name, (text){ words, words + length }, f);
    trek_free(words);
    return status;
}

/* --- elements ------------------------------------------------------------------------ */

static void swap_bytes(unsigned char *bytes, size_t count, size_t size)
{
    for (size_t i = 0; i < count; i++, bytes += size)
        for (size_t k = 0; k < size / 2; k++) {
            unsigned char first = bytes[k];
            bytes[k] = bytes[size - 1 - k];
            bytes[size - 1 - k] = first;
        }
}

/* Converts smaller integers to those that trek has. `from` is at the end of `to`'s own memory. */
static void widen(const form *f, const unsigned char *from, void *to, size_t count)
{
    for (size_t i = 0; i < count; i++, from += f->size) {
        int16_t two;
        uint32_t four;
        memcpy(&two, from, f->size >= 2 ? 2 : 1);
        memcpy(&four, from, f->size == 4 ? 4 : 1);
        if (f->size == 4)
            ((int64_t *)to)[i] = four;
        else
            ((int32_t *)to)[i] = f->size == 1 ? (int8_t)from[0] : f->kind == 'i' ? two : (uint16_t)two;
    }
}

/* Returns the elements in row-major order. In the file they are in the order of the reversed dimensions. */
static trek_tensor *from_fortran(trek_tensor *reversed, trek_shape shape)
{
    int64_t strides[TREK_MAX_DIMS], step = 1;
    for (int d = 0; d < shape.ndim; d++) {
        strides[d] = step;
        step *= shape.sizes[d];
    }
    trek_tensor *view = trek_tensor_make_view(reversed, reversed->data, shape.ndim, shape.sizes, strides);
    trek_tensor *rows = view ? trek_tensor_contiguous(view) : NULL;
    trek_tensor_release(view);
    return rows;
}

static trek_status promised(const trek_npy_source *source, const form *f, size_t *count)
{
    char words[TREK_SHAPE_TEXT];
    bool empty = false;
    for (int d = 0; d < f->shape.ndim; d++)
        empty |= f->shape.sizes[d] == 0;
    *count = empty ? 0 : 1;
    for (int d = 0; d < f->shape.ndim && !empty; d++) {
        if ((uint64_t)f->shape.sizes[d] > source->left / (uint64_t)f->size / *count)
            return trek_fail(TREK_ERR_FORMAT, "%s: the header promises %s elements of %d bytes, but %" PRIu64 " bytes follow",
                             source->name, trek_shape_format(f->shape, words, sizeof words), f->size, source->left);
        *count *= (size_t)f->shape.sizes[d];
    }
    return TREK_OK;
}

trek_tensor *trek_npy_from(trek_npy_source *source)
{
    form f = { 0 };
    size_t count = 0;
    if (read_header(source, &f) != TREK_OK || promised(source, &f, &count) != TREK_OK)
        return NULL;
    trek_tensor *x = trek_tensor_empty(f.shape, f.dtype, trek_cpu(0));
    if (!x)
        return NULL;
    size_t bytes = count * (size_t)f.size, all = count * trek_dtype_size(f.dtype);
    unsigned char *end = (unsigned char *)x->data + (all - bytes); /* where the conversion does not overwrite what it has yet
                                                                    * to read */
    trek_status status = take(source, end, bytes);
    if (status == TREK_OK && f.swapped)
        swap_bytes(end, count, (size_t)f.size);
    if (status == TREK_OK && all > bytes)
        widen(&f, end, x->data, count);
    for (size_t i = 0; f.kind == 'b' && status == TREK_OK && i < count; i++)
        end[i] = end[i] != 0;
    if (status == TREK_OK && f.fortran && f.shape.ndim > 1 && count > 0) {
        trek_tensor *rows = from_fortran(x, f.shape);
        trek_tensor_release(x);
        return rows;
    }
    if (status == TREK_OK)
        return x;
    trek_tensor_release(x);
    return NULL;
}

/* --- files ------------------------------------------------------------------------------ */

typedef struct file_source {
    trek_npy_source base;
    FILE *file;
} file_source;

static trek_status file_read(trek_npy_source *self, void *to, size_t bytes)
{
    file_source *s = (file_source *)self;
    errno = 0;
    if (fread(to, 1, bytes, s->file) == bytes)
        return TREK_OK;
    return ferror(s->file) ? trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", self->name, strerror(errno))
                           : trek_fail(TREK_ERR_FORMAT, "%s: the file ends early", self->name);
}

trek_tensor *trek_npy_read(const char *path)
{
    if (!path) {
        trek_fail_missing("npy_read", "path");
        return NULL;
    }
    FILE *file = fopen(path, "rbe");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
        trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", path, file ? "it is not a regular file" : strerror(errno));
        if (file)
            fclose(file);
        return NULL;
    }
    file_source source = { { path, (uint64_t)info.st_size, file_read }, file };
    trek_tensor *x = trek_npy_from(&source.base);
    fclose(file);
    if (x && source.base.left > 0) {
        trek_fail(TREK_ERR_FORMAT, "%s: %" PRIu64 " bytes follow the array; nothing may follow", path, source.base.left);
        trek_tensor_release(x);
        return NULL;
    }
    return x;
}

trek_status trek_npy_header(const trek_tensor *tensor, unsigned char header[TREK_NPY_HEADER], size_t *size)
{
    static const char *const descr[TREK_DTYPE_COUNT] = { [TREK_F32] = "f4", [TREK_F64] = "f8", [TREK_F16] = "f2",
                                                         [TREK_I64] = "i8",
                                                         [TREK_I32] = "i4", [TREK_U8] = "u1", [TREK_BOOL] = "b1" };
    trek_dtype dtype = trek_tensor_dtype(tensor);
    trek_shape shape = trek_tensor_shape(tensor);
    if (!descr[dtype])
        return trek_fail(TREK_ERR_DTYPE, "npy_write: tensor: dtype %s, which NumPy does not have; cast it",
                         trek_dtype_name(dtype));
    char *words = (char *)header + 10;
    int used = sprintf(words, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", descr[dtype][1] == '1' ? '|'
                       : big_endian() ? '>' : '<', descr[dtype]);
    for (int d = 0; d < shape.ndim; d++)
        used += sprintf(words + used, d ? ", %" PRId64 : "%" PRId64, shape.sizes[d]);
    used += sprintf(words + used, shape.ndim == 1 ? ",), }" : "), }");
    *size = (size_t)(10 + used + 1 + 63) / 64 * 64;
    memset(words + used, ' ', *size - (size_t)(10 + used));
    header[*size - 1] = '\n';
    size_t length = *size - 10;
    memcpy(header, magic, sizeof magic);
    header[6] = 1; /* the version */
    header[7] = 0;
    header[8] = (unsigned char)length;
    header[9] = (unsigned char)(length >> 8);
    return TREK_OK;
}

trek_tensor *trek_npy_rows(trek_tensor *tensor)
{
    trek_tensor *here = trek_tensor_data(tensor) || trek_tensor_numel(tensor) == 0 ? trek_tensor_retain(tensor)
                                                                                   : trek_tensor_to(tensor, trek_cpu(0));
    trek_tensor *rows = here ? trek_tensor_contiguous(here) : NULL;
    trek_tensor_release(here);
    return rows;
}

static trek_status write_array(FILE *file, void *arg)
{
    unsigned char header[TREK_NPY_HEADER];
    size_t size = 0;
    trek_status status = trek_npy_header(arg, header, &size);
    trek_tensor *rows = status == TREK_OK ? trek_npy_rows(arg) : NULL;
    if (rows && fwrite(header, 1, size, file) == size && trek_tensor_numel(rows) > 0)
        fwrite(trek_tensor_data(rows), trek_dtype_size(trek_tensor_dtype(rows)), (size_t)trek_tensor_numel(rows), file);
    if (status == TREK_OK && !rows)
        status = trek_status_or(TREK_ERR_MEMORY);
    trek_tensor_release(rows);
    return status;
}

trek_status trek_npy_write(const char *path, trek_tensor *tensor)
{
    if (!path || !tensor)
        return trek_fail_missing("npy_write", path ? "tensor" : "path");
    return trek_write_whole(path, write_array, tensor);
}
