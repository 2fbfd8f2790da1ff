/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static trek_status read_all(int file, const char *path, uint64_t most, char **text, size_t *length)
{
    struct stat info;
    if (fstat(file, &info) != 0)
        return trek_fail_system(path, "stat");
    if (!S_ISREG(info.st_mode))
        return trek_fail(TREK_ERR_IO, "%s: it is not a regular file", path);
    if ((uint64_t)info.st_size > most)
        return trek_fail(TREK_ERR_FORMAT, "%s: %llu bytes; too large", path, (unsigned long long)info.st_size);
    *text = trek_alloc((size_t)info.st_size + 1);
    for (*length = 0; *text && *length < (size_t)info.st_size;) {
        ssize_t got = read(file, *text + *length, (size_t)info.st_size - *length);
        if (got < 0 && errno != EINTR)
            return trek_fail_system(path, "read");
        if (got == 0)
            return trek_fail(TREK_ERR_IO, "%s: the file became shorter while it was read", path);
        *length += got > 0 ? (size_t)got : 0;
    }
    if (*text)
        (*text)[*length] = 0;
    return *text ? TREK_OK : TREK_ERR_MEMORY;
}

trek_status trek_read_file(const char *path, uint64_t most, char **text, size_t *length)
{
    size_t count;
    *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return trek_fail_system(path, "open");
    trek_status status = read_all(file, path, most, text, length ? length : &count);
    close(file);
    if (status != TREK_OK) {
        trek_free(*text);
        *text = NULL;
    }
    return status;
}
