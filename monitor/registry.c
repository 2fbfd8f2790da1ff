/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/registry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/status_internal.h"

enum { ENTRY = PATH_MAX + 160 };

/* The folder is used only if this user alone can write to it, because others could plant runs there. Returns -1 if
 * there is none; `why` is then "" or the problem. */
static int open_registry(bool make, char *why, size_t size)
{
    char path[PATH_MAX];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat its;
    why[0] = '\0';
    int length = runtime && *runtime ? snprintf(path, sizeof path, "%s/trek", runtime)
                                     : snprintf(path, sizeof path, "/tmp/trek-%ld", (long)getuid());
    if (length >= (int)sizeof path)
        return -1;
    if (make)
        mkdir(path, 0700);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR) && lstat(path, &its) == 0)
        snprintf(why, size, "%.200s, by which trek-top finds runs, is not used: it is not a folder", path);
    if (fd < 0)
        return -1;
    if (fstat(fd, &its) != 0 || its.st_uid != getuid())
        snprintf(why, size, "%.200s, by which trek-top finds runs, is not used: it belongs to another user", path);
    else if (its.st_mode & 022)
        snprintf(why, size, "%.200s, by which trek-top finds runs, is not used: others may write to it", path);
    if (!why[0])
        return fd;
    close(fd);
    return -1;
}

/* Identifies the set of processes among which numbers are unique, and when this process began. The same number may
 * later belong to another process, or to one in another container. "" if unknown. */
static void identify(long pid, char text[128])
{
    char path[64], space[64], stat[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    int fd = length > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = fd >= 0 ? read(fd, stat, sizeof stat - 1) : 0;
    if (fd >= 0)
        close(fd);
    space[length > 0 ? length : 0] = stat[got > 0 ? got : 0] = text[0] = '\0';
    char *field = strrchr(stat, ')'); /* the name before it may contain anything */
    for (int k = 2; field && k < 22; k++)
        field = strchr(field + 1, ' ');
    if (field)
        snprintf(text, 128, "%.60s %.*s", space, (int)strcspn(field + 1, " \n"), field + 1);
}

static bool read_entry(int folder, const char *name, char text[ENTRY])
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t length = fd >= 0 ? read(fd, text, ENTRY - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = '\0';
    return fd >= 0;
}

/* Returns whether the noted process still has its number. *of_others says that the number belongs to a set of
 * processes that is not visible here. */
static bool is_there(long pid, const char *noted, bool *of_others)
{
    char own[128];
    identify(getpid(), own);
    size_t space = strcspn(own, " ");
    *of_others = *noted && *own && strncmp(noted, own, space + 1) != 0;
    if (*of_others || (kill((pid_t)pid, 0) != 0 && errno == ESRCH))
        return false;
    identify(pid, own);
    return !*noted || !*own || strcmp(noted, own) == 0;
}

/* Calls `found` for each process that exists, and removes the entries of those that have gone. */
static void look(int folder, void (*found)(void *arg, const char *path), void *arg)
{
    int again = dup(folder);
    DIR *dir = again >= 0 ? fdopendir(again) : NULL;
    struct dirent *entry;
    char text[ENTRY], *end;
    if (!dir && again >= 0)
        close(again);
    while (dir && (entry = readdir(dir))) {
        long pid = strtol(entry->d_name, &end, 10);
        if (pid <= 0 || strcmp(end, ".run") != 0 || !read_entry(folder, entry->d_name, text))
            continue;
        char *noted = text + strcspn(text, "\n");
        if (*noted)
            *noted++ = '\0';
        noted[strcspn(noted, "\n")] = '\0';
        bool of_others, there = is_there(pid, noted, &of_others);
        if (there && text[0] == '/' && found)
            found(arg, text);
        else if (!there && !of_others)
            unlinkat(folder, entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

static void name_of(char name[32]) { snprintf(name, 32, "%ld.run", (long)getpid()); }

void trek_registry_add(const char *run)
{
    static atomic_bool said;
    char name[32], whole[PATH_MAX], why[400] = "", self[128];
    int folder = realpath(run, whole) ? open_registry(true, why, sizeof why) : -1;
    if (why[0] && !atomic_exchange(&said, true))
        trek_log_message(TREK_LOG_LEVEL_WARNING, "%s", why);
    if (folder < 0)
        return;
    look(folder, NULL, NULL);
    name_of(name);
    identify(getpid(), self);
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file >= 0 && dprintf(file, "%s\n%s\n", whole, self) < 0)
        unlinkat(folder, name, 0);
    if (file >= 0)
        close(file);
    close(folder);
}

void trek_registry_remove(void)
{
    char name[32], why[400];
    int folder = open_registry(false, why, sizeof why);
    name_of(name);
    if (folder < 0)
        return;
    unlinkat(folder, name, 0);
    close(folder);
}

void trek_registry_list(void (*found)(void *arg, const char *folder), void *arg, char *why, size_t size)
{
    int folder = open_registry(false, why, size);
    if (folder < 0)
        return;
    look(folder, found, arg);
    close(folder);
}
