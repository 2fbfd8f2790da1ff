/* SPDX-License-Identifier: Apache-2.0 */
/* Archives of arrays: zip files, in which NumPy writes two kinds of entries, stored and deflated (PKWARE's APPNOTE
 * 6.3). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "data/npy_internal.h"
#include "data/write_internal.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"

enum { END_BYTES = 22, END64_BYTES = 56, LOCATOR_BYTES = 20, CENTRAL_BYTES = 46, LOCAL_BYTES = 30, EXTRA_BYTES = 28,
       PIECE = 1 << 15 };

typedef struct entry {
    char *name;
    uint64_t packed, bytes, at; /* at: the position of its local header */
    uint32_t crc;
    int method;                 /* 0 stored, 8 deflated */
} entry;

struct trek_npz {
    char *path;
    FILE *file;
    uint64_t size;
    entry *entries;
    int n, capacity;
};

static uint64_t number(const unsigned char *b, int bytes)
{
    uint64_t value = 0;
    for (int k = bytes; k-- > 0;)
        value = value << 8 | b[k];
    return value;
}

static void put(unsigned char **to, uint64_t value, int bytes)
{
    for (int k = 0; k < bytes; k++, value >>= 8)
        *(*to)++ = (unsigned char)value;
}

static void put_name(unsigned char **to, const char *name)
{
    while (*name)
        *(*to)++ = (unsigned char)*name++;
    for (const char *end = ".npy"; *end;)
        *(*to)++ = (unsigned char)*end++;
}

/* --- the list of entries ---------------------------------------------------------------- */

static trek_status damaged(const trek_npz *npz, const char *what)
{
    return trek_fail(TREK_ERR_FORMAT, "%s: %s", npz->path, what);
}

static trek_status read_at(const trek_npz *npz, uint64_t at, void *to, size_t bytes)
{
    if (at > npz->size || bytes > npz->size - at)
        return damaged(npz, "a zip archive that is cut off or damaged");
    errno = 0;
    if (fseeko(npz->file, (off_t)at, SEEK_SET) == 0 && fread(to, 1, bytes, npz->file) == bytes)
        return TREK_OK;
    return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", npz->path, errno ? strerror(errno) : "the file ends early");
}

/* Sizes too large for an entry's own fields are in an extra field, 8 bytes each, in this order. */
static bool wide_sizes(const unsigned char *extra, size_t length, uint64_t *const values[], int n)
{
    while (length >= 4) {
        size_t kind = (size_t)number(extra, 2), size = (size_t)number(extra + 2, 2);
        if (size > length - 4)
            return false;
        if (kind == 1) {
            const unsigned char *at = extra + 4, *end = at + size;
            for (int k = 0; k < n; k++) {
                if (*values[k] != 0xffffffffu)
                    continue;
                if (end - at < 8)
                    return false;
                *values[k] = number(at, 8);
                at += 8;
            }
            return true;
        }
        extra += 4 + size;
        length -= 4 + size;
    }
    return true;
}

static trek_status add_entry(trek_npz *npz, const unsigned char *c, size_t name, size_t extra)
{
    if (trek_array_grow(&npz->entries, &npz->capacity, npz->n + 1, sizeof *npz->entries) != TREK_OK)
        return TREK_ERR_MEMORY;
    entry e = { .method = (int)number(c + 10, 2), .crc = (uint32_t)number(c + 16, 4), .packed = number(c + 20, 4),
                .bytes = number(c + 24, 4), .at = number(c + 42, 4) };
    uint64_t *values[] = { &e.bytes, &e.packed, &e.at };
    if (!wide_sizes(c + CENTRAL_BYTES + name, extra, values, 3) || e.packed > npz->size)
        return damaged(npz, "a zip archive that is cut off or damaged");
    if ((c[8] & 1) || (e.method != 0 && e.method != 8))
        return damaged(npz, "an archive that is encrypted, or packed other than by deflate");
    if (e.bytes > (e.method ? e.packed * 1032 + 1024 : e.packed)) /* more than deflate can expand it to */
        return damaged(npz, "an entry claims more bytes than it can hold");
    size_t length = name > 4 && memcmp(c + CENTRAL_BYTES + name - 4, ".npy", 4) == 0 ? name - 4 : name;
    e.name = trek_alloc(length + 1);
    if (!e.name)
        return TREK_ERR_MEMORY;
    memcpy(e.name, c + CENTRAL_BYTES, length);
    e.name[length] = 0;
    npz->entries[npz->n++] = e;
    return TREK_OK;
}

static trek_status read_entries(trek_npz *npz, uint64_t at, uint64_t bytes, uint64_t count)
{
    if (bytes > npz->size || count > bytes / CENTRAL_BYTES)
        return damaged(npz, "a zip archive that is cut off or damaged");
    unsigned char *list = trek_alloc((size_t)bytes), *c = list;
    trek_status status = list ? read_at(npz, at, list, (size_t)bytes) : TREK_ERR_MEMORY;
    for (uint64_t k = 0; k < count && status == TREK_OK; k++) {
        size_t left = (size_t)bytes - (size_t)(c - list), name = 0, extra = 0, all = CENTRAL_BYTES;
        if (left >= CENTRAL_BYTES && number(c, 4) == 0x02014b50u) {
            name = (size_t)number(c + 28, 2);
            extra = (size_t)number(c + 30, 2);
            all += name + extra + (size_t)number(c + 32, 2);
        }
        if (name == 0 || all > left)
            status = damaged(npz, "a zip archive that is cut off or damaged");
        else
            status = add_entry(npz, c, name, extra);
        c += all <= left ? all : 0;
    }
    trek_free(list);
    return status;
}

/* Finds the record at the file's end, which may be followed by a comment. */
static trek_status find_list(trek_npz *npz)
{
    static const char none[] = "no .npz: it is no zip archive, or is cut off";
    unsigned char wide[END64_BYTES];
    size_t tail = npz->size < 0x10000 + END_BYTES ? (size_t)npz->size : 0x10000 + END_BYTES;
    if (tail < END_BYTES)
        return damaged(npz, none);
    unsigned char *bytes = trek_alloc(tail);
    trek_status status = bytes ? read_at(npz, npz->size - tail, bytes, tail) : TREK_ERR_MEMORY;
    size_t at = tail - END_BYTES + 1;
    while (status == TREK_OK && at-- > 0)
        if (number(bytes + at, 4) == 0x06054b50u && number(bytes + at + 20, 2) == tail - at - END_BYTES)
            break;
    if (status == TREK_OK && at == (size_t)-1)
        status = damaged(npz, none);
    if (status == TREK_OK) {
        const unsigned char *end = bytes + at;
        uint64_t count = number(end + 10, 2), length = number(end + 12, 4), first = number(end + 16, 4);
        if (at >= LOCATOR_BYTES && number(end - LOCATOR_BYTES, 4) == 0x07064b50u) {
            status = read_at(npz, number(end - LOCATOR_BYTES + 8, 8), wide, sizeof wide);
            if (status == TREK_OK && number(wide, 4) != 0x06064b50u)
                status = damaged(npz, "a zip archive that is cut off or damaged");
            count = number(wide + 32, 8);
            length = number(wide + 40, 8);
            first = number(wide + 48, 8);
        } else if (number(end + 4, 2) != 0 || number(end + 8, 2) != count) {
            status = damaged(npz, "an archive of several volumes");
        }
        if (status == TREK_OK)
            status = read_entries(npz, first, length, count);
    }
    trek_free(bytes);
    return status;
}

void trek_npz_close(trek_npz **npz)
{
    if (!npz || !*npz)
        return;
    for (int k = 0; k < (*npz)->n; k++)
        trek_free((*npz)->entries[k].name);
    trek_free((*npz)->entries);
    if ((*npz)->file)
        fclose((*npz)->file);
    trek_free((*npz)->path);
    trek_free(*npz);
    *npz = NULL;
}

static trek_status open_archive(trek_npz *npz, const char *path)
{
    struct stat info;
    npz->path = trek_strdup(path);
    if (!npz->path)
        return TREK_ERR_MEMORY;
    npz->file = fopen(path, "rbe");
    if (!npz->file)
        return trek_fail(TREK_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(fileno(npz->file), &info) != 0 || !S_ISREG(info.st_mode))
        return trek_fail(TREK_ERR_IO, "%s: is not a regular file", path);
    npz->size = (uint64_t)info.st_size;
    return find_list(npz);
}

trek_npz *trek_npz_open(const char *path)
{
    trek_npz *npz = path ? trek_calloc(1, sizeof *npz) : NULL;
    if (!path)
        trek_fail_missing("npz_open", "path");
    if (npz && open_archive(npz, path) != TREK_OK)
        trek_npz_close(&npz);
    return npz;
}

int trek_npz_count(const trek_npz *npz)
{
    if (!npz)
        trek_fail_missing("npz_count", "archive");
    return npz ? npz->n : -1;
}

const char *trek_npz_name(const trek_npz *npz, int k) { return npz && k >= 0 && k < npz->n ? npz->entries[k].name : NULL; }

/* --- one array --------------------------------------------------------------------------- */

typedef struct unzip {
    trek_npy_source base;
    const trek_npz *npz;
    z_stream z;
    uint64_t packed; /* bytes left in the file */
    uint32_t crc;
    int method;
    unsigned char piece[PIECE];
} unzip;

static trek_status fill(unzip *u)
{
    size_t want = u->packed < PIECE ? (size_t)u->packed : PIECE;
    if (want == 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: the compressed data ends early", u->base.name);
    if (fread(u->piece, 1, want, u->npz->file) != want)
        return trek_fail(TREK_ERR_IO, "%s: cannot be read: the file ends early", u->base.name);
    u->packed -= want;
    u->z.next_in = u->piece;
    u->z.avail_in = (uInt)want;
    return TREK_OK;
}

static trek_status inflate_bytes(unzip *u, unsigned char *to, size_t bytes)
{
    while (bytes > 0) {
        size_t want = bytes < 1u << 30 ? bytes : 1u << 30;
        u->z.next_out = to;
        u->z.avail_out = (uInt)want;
        trek_status status = u->z.avail_in == 0 && u->packed > 0 ? fill(u) : TREK_OK;
        int code = status == TREK_OK ? inflate(&u->z, Z_NO_FLUSH) : Z_OK;
        if (status != TREK_OK)
            return status;
        size_t made = want - u->z.avail_out;
        if (code == Z_MEM_ERROR)
            return trek_fail(TREK_ERR_MEMORY, "%s: no memory to decompress it", u->base.name);
        if ((code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) ||
            (made == 0 && u->z.avail_in == 0 && u->packed == 0) ||
            (code == Z_STREAM_END && made < bytes))
            return trek_fail(TREK_ERR_FORMAT, "%s: the compressed data is corrupt or ends early", u->base.name);
        to += made;
        bytes -= made;
    }
    return TREK_OK;
}

static trek_status unzip_read(trek_npy_source *self, void *to, size_t bytes)
{
    unzip *u = (unzip *)self;
    trek_status status = TREK_OK;
    if (u->method)
        status = inflate_bytes(u, to, bytes);
    else if (fread(to, 1, bytes, u->npz->file) != bytes)
        status = trek_fail(TREK_ERR_IO, "%s: cannot be read: the file ends early", self->name);
    if (status == TREK_OK)
        u->crc = (uint32_t)crc32_z(u->crc, to, bytes);
    return status;
}

static trek_tensor *read_entry(unzip *u, const entry *e)
{
    unsigned char local[LOCAL_BYTES];
    if (read_at(u->npz, e->at, local, sizeof local) != TREK_OK)
        return NULL;
    uint64_t first = e->at + LOCAL_BYTES + number(local + 26, 2) + number(local + 28, 2);
    if (number(local, 4) != 0x04034b50u || first > u->npz->size || e->packed > u->npz->size - first)
        return damaged(u->npz, "a zip archive that is cut off or damaged"), NULL;
    if (fseeko(u->npz->file, (off_t)first, SEEK_SET) != 0)
        return trek_fail_null(TREK_ERR_IO, "%s: cannot be read: %s", u->npz->path, strerror(errno));
    if (u->method && inflateInit2(&u->z, -15) != Z_OK)
        return trek_fail_null(TREK_ERR_MEMORY, "%s: no memory to decompress it", u->base.name);
    trek_tensor *x = trek_npy_from(&u->base);
    if (u->method)
        inflateEnd(&u->z);
    if (x && (u->base.left > 0 || u->crc != e->crc)) {
        trek_fail(TREK_ERR_FORMAT, u->base.left > 0 ? "%s: bytes follow the array"
                  : "%s: the checksum does not match: it is damaged",
                  u->base.name);
        trek_tensor_release(x);
        return NULL;
    }
    return x;
}

static const entry *find_entry(const trek_npz *npz, const char *name)
{
    char list[300] = "";
    size_t used = 0;
    for (int k = 0; k < npz->n; k++) {
        const char *have = npz->entries[k].name;
        if (strcmp(have, name) == 0)
            return &npz->entries[k];
        if (used + strlen(have) + 8 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", have);
    }
    return trek_fail_null(TREK_ERR_ARGUMENT, "%s: there is no array \"%s\" in it; the arrays are: %s", npz->path, name, list);
}

trek_tensor *trek_npz_read(trek_npz *npz, const char *name)
{
    if (!npz || !name) {
        trek_fail_missing("npz_read", npz ? "name" : "archive");
        return NULL;
    }
    const entry *e = find_entry(npz, name);
    unzip *u = e ? trek_calloc(1, sizeof *u) : NULL;
    char *where = u ? trek_format("%s: %s", npz->path, name) : NULL;
    trek_tensor *x = NULL;
    if (where) {
        u->base = (trek_npy_source){ where, e->bytes, unzip_read };
        u->npz = npz;
        u->packed = e->packed;
        u->method = e->method;
        x = read_entry(u, e);
    }
    trek_free(where);
    trek_free(u);
    return x;
}

/* --- writing --------------------------------------------------------------------------------
 * With sizes of 64 bits throughout, as NumPy does it; an entry's sizes are put into its header when they are known. */

typedef struct archive {
    const char *const *names;
    trek_tensor *const *tensors;
    int n;
    bool compress;
    entry *entries;
} archive;

static size_t local_header(const entry *e, const char *name, unsigned char *to)
{
    unsigned char *at = to;
    size_t length = strlen(name) + 4;
    put(&at, 0x04034b50u, 4);
    put(&at, 45, 2); /* version: sizes of 64 bits */
    put(&at, 0x800, 2); /* names are UTF-8 */
    put(&at, (uint64_t)e->method, 2);
    put(&at, 0x00210000u, 4); /* 1 January 1980 */
    put(&at, e->crc, 4);
    put(&at, 0xffffffffu, 4);
    put(&at, 0xffffffffu, 4);
    put(&at, length, 2);
    put(&at, 20, 2);
    put_name(&at, name);
    put(&at, 1, 2);
    put(&at, 16, 2);
    put(&at, e->bytes, 8);
    put(&at, e->packed, 8);
    return (size_t)(at - to);
}

static size_t central_header(const entry *e, const char *name, unsigned char *to)
{
    unsigned char *at = to;
    size_t length = strlen(name) + 4;
    put(&at, 0x02014b50u, 4);
    put(&at, 45, 2);
    put(&at, 45, 2);
    put(&at, 0x800, 2);
    put(&at, (uint64_t)e->method, 2);
    put(&at, 0x00210000u, 4);
    put(&at, e->crc, 4);
    put(&at, 0xffffffffu, 4);
    put(&at, 0xffffffffu, 4);
    put(&at, length, 2);
    put(&at, EXTRA_BYTES, 2);
    put(&at, 0, 6); /* comment, volume, internal attributes */
    put(&at, 0, 4); /* and external ones */
    put(&at, 0xffffffffu, 4);
    put_name(&at, name);
    put(&at, 1, 2);
    put(&at, 24, 2);
    put(&at, e->bytes, 8);
    put(&at, e->packed, 8);
    put(&at, e->at, 8);
    return (size_t)(at - to);
}

static trek_status deflate_part(FILE *file, z_stream *z, const unsigned char *from, size_t bytes, bool last, uint64_t *packed)
{
    unsigned char piece[4096];
    int code = Z_OK;
    do {
        size_t want = bytes < 1u << 30 ? bytes : 1u << 30;
        z->next_in = (unsigned char *)(uintptr_t)from;
        z->avail_in = (uInt)want;
        from += want;
        bytes -= want;
        do {
            z->next_out = piece;
            z->avail_out = sizeof piece;
            code = deflate(z, last && bytes == 0 ? Z_FINISH : Z_NO_FLUSH);
            *packed += fwrite(piece, 1, sizeof piece - z->avail_out, file);
        } while (z->avail_out == 0 && code != Z_STREAM_ERROR);
    } while (bytes > 0 && code != Z_STREAM_ERROR);
    return code == Z_STREAM_ERROR ? trek_fail(TREK_ERR_STATE, "npz_write: deflate failed") : TREK_OK;
}

static trek_status write_body(FILE *file, entry *e, const unsigned char *header, size_t size, const void *data, size_t bytes)
{
    e->crc = (uint32_t)crc32_z(crc32_z(0, header, size), data, bytes);
    e->bytes = size + bytes;
    if (!e->method) {
        e->packed = fwrite(header, 1, size, file);
        e->packed += bytes > 0 ? fwrite(data, 1, bytes, file) : 0;
        return TREK_OK;
    }
    z_stream z;
    memset(&z, 0, sizeof z);
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return trek_fail(TREK_ERR_MEMORY, "npz_write: no memory to compress");
    trek_status status = deflate_part(file, &z, header, size, false, &e->packed);
    if (status == TREK_OK)
        status = deflate_part(file, &z, data, bytes, true, &e->packed);
    deflateEnd(&z);
    return status;
}

static trek_status write_entry(FILE *file, const archive *a, int k, unsigned char *room)
{
    entry *e = &a->entries[k];
    unsigned char header[TREK_NPY_HEADER];
    size_t size = 0;
    trek_status status = trek_npy_header(a->tensors[k], header, &size);
    trek_tensor *rows = status == TREK_OK ? trek_npy_rows(a->tensors[k]) : NULL;
    if (status != TREK_OK || !rows)
        return status != TREK_OK ? status : trek_status_or(TREK_ERR_MEMORY);
    static const char nothing[1];
    size_t bytes = (size_t)trek_tensor_numel(rows) * trek_dtype_size(trek_tensor_dtype(rows));
    e->at = (uint64_t)ftello(file);
    e->method = a->compress ? 8 : 0;
    size_t length = local_header(e, a->names[k], room);
    fwrite(room, 1, length, file);
    status = write_body(file, e, header, size, bytes > 0 ? trek_tensor_data(rows) : nothing, bytes);
    off_t end = ftello(file);
    local_header(e, a->names[k], room);
    if (fseeko(file, (off_t)e->at, SEEK_SET) == 0)
        fwrite(room, 1, length, file);
    fseeko(file, end, SEEK_SET);
    trek_tensor_release(rows);
    return status;
}

static trek_status write_archive(FILE *file, void *arg)
{
    const archive *a = arg;
    unsigned char end[END64_BYTES + LOCATOR_BYTES + END_BYTES], *at = end;
    size_t longest = 0;
    for (int k = 0; k < a->n; k++)
        longest = strlen(a->names[k]) > longest ? strlen(a->names[k]) : longest;
    unsigned char *room = trek_alloc(longest + 128);
    trek_status status = room ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        status = write_entry(file, a, k, room);
    uint64_t first = (uint64_t)ftello(file);
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        fwrite(room, 1, central_header(&a->entries[k], a->names[k], room), file);
    uint64_t behind = (uint64_t)ftello(file), count = (uint64_t)a->n;
    trek_free(room);
    put(&at, 0x06064b50u, 4);
    put(&at, END64_BYTES - 12, 8);
    put(&at, 45 | 45 << 16, 4);
    put(&at, 0, 8);
    put(&at, count, 8);
    put(&at, count, 8);
    put(&at, behind - first, 8);
    put(&at, first, 8);
    put(&at, 0x07064b50u, 4);
    put(&at, 0, 4);
    put(&at, behind, 8);
    put(&at, 1, 4);
    put(&at, 0x06054b50u, 4);
    put(&at, 0, 4);
    put(&at, count < 0xffff ? count : 0xffff, 2);
    put(&at, count < 0xffff ? count : 0xffff, 2);
    put(&at, behind - first < 0xffffffffu ? behind - first : 0xffffffffu, 4);
    put(&at, first < 0xffffffffu ? first : 0xffffffffu, 4);
    put(&at, 0, 2);
    fwrite(end, 1, sizeof end, file);
    return status;
}

trek_status trek_npz_write(const char *path, const char *const *names, trek_tensor *const *tensors, int n, bool compress)
{
    if (!path || n < 0 || (n > 0 && (!names || !tensors)))
        return trek_fail_missing("npz_write", path ? "names and tensors" : "path");
    for (int k = 0; k < n; k++) {
        if (!names[k] || !tensors[k])
            return trek_fail_missing("npz_write", names[k] ? "tensor" : "name");
        if (!names[k][0] || strlen(names[k]) > 0xff00)
            return trek_fail(TREK_ERR_ARGUMENT, "npz_write: name of array %d: missing or too long; each array must have one", k);
        for (int j = 0; j < k; j++)
            if (strcmp(names[j], names[k]) == 0)
                return trek_fail(TREK_ERR_ARGUMENT, "npz_write: names: \"%s\" occurs twice; names must differ", names[k]);
    }
    archive a = { names, tensors, n, compress, trek_calloc((size_t)n + 1, sizeof *a.entries) };
    if (!a.entries)
        return TREK_ERR_MEMORY;
    trek_status status = trek_write_whole(path, write_archive, &a);
    trek_free(a.entries);
    return status;
}
