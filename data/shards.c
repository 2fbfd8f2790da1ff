/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over files of tokens, which stay on disk. They are read and not mapped, so that a file that shrinks
 * meanwhile is an error and not a signal. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataset_internal.h"
#include "data/text_sets.h"

#define HEADER_BYTES 1024
#define MAGIC_16 20240520u /* version 1: tokens of 16 bits */
#define MAGIC_32 20240801u /* version 7: tokens of 32 bits */

typedef struct shard {
    char *path;
    int file;              /* -1 if not open */
    int64_t first_byte;    /* of the tokens */
    int token_bytes;       /* 2 or 4 */
    int64_t first_window;  /* its number in the dataset */
    int64_t windows;
} shard;

typedef struct token_shards {
    trek_dataset base;
    int64_t window, windows;
    int raw_bytes;         /* of tokens in files without a header */
    int n;
    shard *shards;
} token_shards;

static const char *const window_fields[2] = { "input", "target" };

static int64_t shards_length(const trek_dataset *self) { return ((const token_shards *)self)->windows; }

static trek_status read_at(const shard *s, void *to, size_t bytes, int64_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(s->file, (char *)to + done, bytes - done, (off_t)(at + (int64_t)done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", s->path, strerror(errno));
        if (got == 0)
            return trek_fail(TREK_ERR_IO, "%s: it has become shorter since it was opened", s->path);
        done += (size_t)got;
    }
    return TREK_OK;
}

/* Returns the shard that holds a window: the last one that begins at or before it. */
static const shard *shard_of(const token_shards *set, int64_t index)
{
    int low = 0, high = set->n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (set->shards[middle].first_window <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &set->shards[low];
}

static int64_t token_at(const unsigned char *b, int bytes)
{
    return bytes == 2 ? b[0] | b[1] << 8
                      : (int64_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
}

static trek_status shards_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const token_shards *set = (const token_shards *)self;
    out[0] = trek_dataset_tensor(fetch->n, trek_dims(set->window), TREK_I64);
    out[1] = trek_dataset_tensor(fetch->n, trek_dims(set->window), TREK_I64);
    unsigned char *tokens = out[0] && out[1] ? trek_alloc((size_t)(set->window + 1) * 4) : NULL;
    if (!tokens)
        return trek_status_or(TREK_ERR_MEMORY);
    int64_t *input = trek_tensor_data(out[0]), *target = trek_tensor_data(out[1]);
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < fetch->n && status == TREK_OK; i++) {
        const shard *s = shard_of(set, fetch->indices[i]);
        int bytes = s->token_bytes;
        status = read_at(s, tokens, (size_t)(set->window + 1) * (size_t)bytes,
                         s->first_byte + (fetch->indices[i] - s->first_window) * set->window * bytes);
        for (int64_t t = 0; t < set->window && status == TREK_OK; t++) {
            *input++ = token_at(tokens + t * bytes, bytes);
            *target++ = token_at(tokens + (t + 1) * bytes, bytes);
        }
    }
    trek_free(tokens);
    return status;
}

static void shards_free(trek_dataset *self)
{
    token_shards *set = (token_shards *)self;
    for (int k = 0; set->shards && k < set->n; k++) {
        if (set->shards[k].file >= 0)
            close(set->shards[k].file);
        trek_free(set->shards[k].path);
    }
    trek_free(set->shards);
}

static const trek_dataset_class shards_class = {
    .name = "token_shards", .size = sizeof(token_shards), .length = shards_length, .get = shards_get, .free = shards_free,
    .n_fields = 2, .fields = window_fields,
};

static uint32_t little_endian(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Finds where the tokens are, and how many. */
static trek_status shard_measure(shard *s, int raw_bytes, int64_t *tokens)
{
    struct stat info;
    if (fstat(s->file, &info) != 0)
        return trek_fail(TREK_ERR_IO, "%s: cannot be examined: %s", s->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return trek_fail(TREK_ERR_IO, "%s: it is not a regular file", s->path);
    int64_t size = (int64_t)info.st_size;
    unsigned char head[12];
    trek_status status = size >= HEADER_BYTES ? read_at(s, head, sizeof(head), 0) : TREK_OK;
    if (status != TREK_OK)
        return status;
    uint32_t magic = size >= HEADER_BYTES ? little_endian(head) : 0, version = magic ? little_endian(head + 4) : 0;
    bool of_16 = magic == MAGIC_16 && version == 1, of_32 = magic == MAGIC_32 && version == 7, headed = of_16 || of_32;
    s->first_byte = headed ? HEADER_BYTES : 0;
    s->token_bytes = of_16 ? 2 : of_32 ? 4 : raw_bytes;
    if ((size - s->first_byte) % s->token_bytes != 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: %" PRId64 " bytes; must be a whole number of %d-bit tokens", s->path, size,
                         8 * s->token_bytes);
    *tokens = (size - s->first_byte) / s->token_bytes;
    if (headed && (int64_t)little_endian(head + 8) != *tokens)
        return trek_fail(TREK_ERR_FORMAT, "%s: the header promises %u tokens, but the file holds %" PRId64, s->path,
                         (unsigned)little_endian(head + 8), *tokens);
    return TREK_OK;
}

static trek_status shard_open(token_shards *set, shard *s, const char *path)
{
    s->path = trek_strdup(path);
    if (!s->path)
        return TREK_ERR_MEMORY;
    s->file = open(path, O_RDONLY | O_CLOEXEC);
    if (s->file < 0)
        return trek_fail(TREK_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    int64_t tokens = 0;
    trek_status status = shard_measure(s, set->raw_bytes, &tokens);
    if (status != TREK_OK)
        return status;
    s->first_window = set->windows;
    s->windows = tokens > set->window ? (tokens - 1) / set->window : 0;
    set->windows += s->windows;
    return TREK_OK;
}

static trek_status shards_fill(token_shards *set, const char *const *paths, int n)
{
    set->shards = trek_calloc((size_t)n, sizeof(*set->shards));
    if (!set->shards)
        return TREK_ERR_MEMORY;
    set->n = n;
    for (int k = 0; k < n; k++)
        set->shards[k].file = -1;
    for (int k = 0; k < n; k++) {
        trek_status status = paths[k] ? shard_open(set, &set->shards[k], paths[k])
            : trek_fail_missing("dataset_token_shards", "path");
        if (status != TREK_OK)
            return status;
    }
    if (set->windows == 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: %stoo short: no window of %" PRId64 " tokens with its target fits", paths[0],
                         n > 1 ? "this file and the others are " : "it is ", set->window);
    return TREK_OK;
}

trek_dataset *trek_dataset_token_shards_with(const char *const *paths, int n_paths, int64_t window,
                                             const trek_token_shards_opts *opts)
{
    if (!paths || n_paths < 1) {
        trek_fail_missing("dataset_token_shards", "path");
        return NULL;
    }
    int bits = opts && opts->bits ? opts->bits : 16;
    if (window < 1 || window > INT32_MAX || (bits != 16 && bits != 32))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "dataset_token_shards: window: %" PRId64 ", .bits: %d; must be at least 1, and 16 or 32 bits",
                              window, bits);
    trek_dataset *set = trek_dataset_new(&shards_class);
    if (!set)
        return NULL;
    ((token_shards *)set)->window = window;
    ((token_shards *)set)->raw_bytes = bits / 8;
    if (shards_fill((token_shards *)set, paths, n_paths) != TREK_OK)
        trek_dataset_free(&set);
    return set;
}

trek_dataset *trek_dataset_token_shards(const char *const *paths, int n_paths, int64_t window)
{
    return trek_dataset_token_shards_with(paths, n_paths, window, NULL);
}
