/* SPDX-License-Identifier: Apache-2.0 */
#include "data/write_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "nn/replace_file.h"
#include "tensor/status_internal.h"

trek_status trek_write_whole(const char *path, trek_status (*write)(FILE *file, void *arg), void *arg)
{
    trek_file_replacement place;
    trek_status status = trek_replace_begin(&place, path);
    if (status != TREK_OK)
        return status;
    int own = dup(place.file);
    FILE *file = own >= 0 ? fdopen(own, "wb") : NULL;
    errno = 0;
    if (file)
        status = write(file, arg);
    bool failed = !file || ferror(file);
    int reason = errno;
    if (file && fclose(file) != 0 && !failed) {
        failed = true;
        reason = errno;
    } else if (!file && own >= 0) {
        close(own);
    }
    if (status == TREK_OK && failed)
        status = trek_fail(TREK_ERR_IO, "%s: cannot be written: %s", path, strerror(reason));
    return trek_replace_end(&place, status);
}
