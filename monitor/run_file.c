/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file in a run's folder in a way that nobody can substitute another one. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "monitor/monitor_internal.h"

int trek_monitor_open_file(const trek_monitor *m, const char *name, int flags)
{
    struct stat about;
    int folder = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int file = folder < 0 ? -1 : openat(folder, name, flags | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    int why = errno;
    if (file >= 0 && (fstat(file, &about) != 0 || !S_ISREG(about.st_mode))) { /* a pipe or a device */
        close(file);
        file = -1;
        why = EINVAL;
    }
    if (folder >= 0)
        close(folder);
    errno = why;
    return file;
}
