/* SPDX-License-Identifier: Apache-2.0 */
/* The process and its machine. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "distributed/system/system.h"
#include "tensor/environment.h"
#include "tensor/plugin.h"

int trek_process_id(void) { return (int)getpid(); }
int trek_process_parent(void) { return (int)getppid(); }

void trek_process_host(char *text, size_t size)
{
    text[0] = text[size - 1] = '\0';
    gethostname(text, size - 1);
}

/* Describes the extent of the machine: one kernel, one view of its processes, one /dev/shm. */
void trek_process_machine(char *text, size_t size)
{
    char boot[64] = "", space[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (fgets(boot, sizeof boot, file))
            boot[strcspn(boot, "\n")] = '\0';
        fclose(file);
    }
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[length > 0 ? length : 0] = '\0';
    struct stat shared = { 0 };
    if (stat("/dev/shm", &shared) != 0)
        memset(&shared, 0, sizeof shared);
    if (boot[0] == '\0')
        trek_process_host(boot, sizeof boot);
    snprintf(text, size, "%s %s %llu", boot, space, (unsigned long long)shared.st_dev);
}

bool trek_process_is_limit(int error) { return error == EMFILE || error == EFBIG; }

char *trek_process_why(int error, char *text, size_t size)
{
    struct rlimit limit;
    bool files = error == EMFILE; /* the shell counts file sizes in units of 1024 bytes */
    if (trek_process_is_limit(error) && getrlimit(files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, size, "%s (the limit of this process: ulimit %s is %llu)", strerror(error), files ? "-n" : "-f",
                 (unsigned long long)(files ? limit.rlim_cur : limit.rlim_cur / 1024));
    else
        snprintf(text, size, "%s", strerror(error));
    return text;
}

bool trek_process_at_exit(void (*fn)(void)) { return atexit(fn) == 0; }
bool trek_process_random(void *bytes, size_t n) { return getrandom(bytes, n, 0) == (ssize_t)n; } /* complete, up to 256 bytes */
const char *trek_process_variable(const char *name) { return getenv(name); }

long trek_process_number(const char *name, long low, long high, long unset)
{
    return trek_environment_number(name, low, high, unset);
}

void *trek_process_plugin(const char *plugin, char *why, size_t size) { return trek_plugin_open(plugin, why, size); }
void *trek_process_symbol(void *library, const char *name) { return dlsym(library, name); }

int trek_process_file(int pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}
