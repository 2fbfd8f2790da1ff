/* SPDX-License-Identifier: Apache-2.0 */
/* Reading plain files where zlib is missing. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "data/unpack_internal.h"

trek_status trek_unpack_open(trek_unpack *r, const char *path)
{
    *r = (trek_unpack){ .path = path };
    FILE *file = fopen(path, "rbe");
    r->file = file;
    if (!file)
        return trek_fail(TREK_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    unsigned char head[2] = { 0, 0 };
    size_t got = fread(head, 1, sizeof head, file);
    rewind(file);
    if (got < sizeof head || head[0] != 0x1f || head[1] != 0x8b)
        return TREK_OK;
    fclose(file);
    return trek_fail(TREK_ERR_UNSUPPORTED, "%s: it is compressed with gzip, and this library was built without zlib", path);
}

trek_status trek_unpack_read(trek_unpack *r, unsigned char *to, size_t bytes, size_t *got)
{
    errno = 0;
    *got = fread(to, 1, bytes, r->file);
    if (*got < bytes && ferror((FILE *)r->file))
        return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", r->path, strerror(errno));
    return TREK_OK;
}

bool trek_unpack_is_packed(const trek_unpack *r)
{
    (void)r;
    return false;
}

void trek_unpack_close(trek_unpack *r) { fclose(r->file); }
