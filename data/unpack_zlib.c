/* SPDX-License-Identifier: Apache-2.0 */
/* Plain and gzip'd files through zlib, which reads plain ones unchanged. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "data/unpack_internal.h"

/* Text expands up to ten times and pictures of digits five times; deflate could reach a thousand. */
enum { MOST_RATIO = 100, ALWAYS = 64 << 20 };
static const uint64_t most_bytes = UINT64_C(16) << 30;

static uint64_t most_of(const char *path)
{
    struct stat file;
    if (stat(path, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < 0)
        return most_bytes;
    uint64_t size = (uint64_t)file.st_size;
    return size > most_bytes / MOST_RATIO ? most_bytes : size * MOST_RATIO > ALWAYS ? size * MOST_RATIO : ALWAYS;
}

static trek_status read_failed(const trek_unpack *r)
{
    int code = Z_OK;
    int reason = errno;
    const char *text = gzerror(r->file, &code);
    if (code == Z_ERRNO)
        return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", r->path, strerror(reason));
    if (code == Z_MEM_ERROR)
        return trek_fail(TREK_ERR_MEMORY, "%s: no memory to decompress it", r->path);
    if (code == Z_BUF_ERROR)
        return trek_fail(TREK_ERR_FORMAT, "%s: the compressed data ends early (truncated file)", r->path);
    size_t prefix = strlen(r->path); /* zlib puts "path: " in front */
    if (strncmp(text, r->path, prefix) == 0 && strncmp(text + prefix, ": ", 2) == 0)
        text += prefix + 2;
    return trek_fail(TREK_ERR_FORMAT, "%s: the compressed data is corrupt (%s)", r->path, text);
}

trek_status trek_unpack_read(trek_unpack *r, unsigned char *to, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        size_t want = bytes - *got < (1u << 24) ? bytes - *got : 1u << 24;
        errno = 0;
        int count = gzread(r->file, to + *got, (unsigned)want);
        if (count < 0)
            return read_failed(r);
        *got += (size_t)count;
        r->got += (uint64_t)count;
        if (r->got > r->most && !gzdirect(r->file))
            return trek_fail(TREK_ERR_FORMAT, "%s: it unpacks to more than %" PRIu64 " bytes, far more than such a file holds",
                             r->path, r->most);
        if ((size_t)count < want) {
            int code = Z_OK;
            gzerror(r->file, &code);
            return code == Z_OK || code == Z_STREAM_END ? TREK_OK : read_failed(r);
        }
    }
    return TREK_OK;
}

trek_status trek_unpack_open(trek_unpack *r, const char *path)
{
    *r = (trek_unpack){ .path = path, .most = most_of(path) };
    errno = 0;
    r->file = gzopen(path, "rbe");
    if (r->file)
        return TREK_OK;
    if (errno == 0)
        return trek_fail(TREK_ERR_MEMORY, "%s: no memory to read it", path);
    return trek_fail(TREK_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
}

bool trek_unpack_is_packed(const trek_unpack *r) { return !gzdirect(r->file); }
void trek_unpack_close(trek_unpack *r) { gzclose_r(r->file); }
