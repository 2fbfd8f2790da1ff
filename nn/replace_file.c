/* SPDX-License-Identifier: Apache-2.0 */
/* A writer holds a lock on its file until it ends, however it ends. A file whose lock is free therefore has no
 * writer. Other machines may not see the lock, so a file from another machine also has to be old. */
#include "nn/replace_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

#define OLD_S (24 * 3600)
#define MARK ".tmp-"

/* Returns a short identifier of the machine. */
static unsigned host(void)
{
    char name[256] = "";
    uint32_t hash = 2166136261u; /* FNV-1a */
    gethostname(name, sizeof name - 1);
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    return hash;
}

/* --- what was left behind ---------------------------------------------------------------------------------------- */

/* Whether the rest of a name has the form "HOST-PID-N". */
static bool is_temporary(const char *rest, bool *here)
{
    unsigned from, pid, number;
    int used = 0;
    if (strspn(rest, "0123456789abcdef") != 8 || sscanf(rest, "%8x-%u-%u%n", &from, &pid, &number, &used) != 3 ||
        rest[used] != '\0')
        return false;
    *here = from == host();
    return true;
}

/* Returns whether the entry of a folder is a temporary file. */
static bool is_ours(const char *entry, bool *here)
{
    const char *mark = NULL;
    for (const char *next = entry; (next = strstr(next, MARK)); next++)
        mark = next;
    *here = false;
    return mark && mark != entry && is_temporary(mark + strlen(MARK), here);
}

/* A writer that has just made the file and waits for its lock finds the file gone and makes another one. */
static void remove_abandoned(int folder, const char *name, bool here)
{
    struct stat is;
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return;
    bool old = fstat(file, &is) == 0 && S_ISREG(is.st_mode) && (here || time(NULL) - is.st_mtime > OLD_S);
    if (old && flock(file, LOCK_EX | LOCK_NB) == 0 && unlinkat(folder, name, 0) == 0)
        trek_log_message(TREK_LOG_LEVEL_INFO, "removed %s, which an interrupted save has left", name);
    close(file);
}

void trek_replace_tidy(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? trek_format("%.*s", slash == path ? 1 : (int)(slash - path), path) : trek_format(".");
    DIR *list = folder ? opendir(folder) : NULL;
    bool here;
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (is_ours(entry->d_name, &here))
            remove_abandoned(dirfd(list), entry->d_name, here);
    if (list)
        closedir(list);
    trek_free(folder);
}

/* Locks a new file. Where the system has no locks, nobody takes the file for abandoned either. Returns false if the file is
 * already gone. */
static bool hold(int file)
{
    struct stat is;
    while (flock(file, LOCK_EX) != 0 && errno == EINTR)
        ;
    return fstat(file, &is) == 0 && is.st_nlink > 0;
}

/* Returns a new path beside `path`. */
static char *temporary_name(const char *path)
{
    static atomic_uint counter; /* several threads may write to one directory */
    return trek_format("%s" MARK "%08x-%ld-%u", path, host(), (long)getpid(), atomic_fetch_add(&counter, 1));
}

trek_status trek_replace_begin(trek_file_replacement *r, const char *path)
{
    trek_replace_tidy(path);
    *r = (trek_file_replacement){ .file = -1, .path = path };
    while (r->file < 0) {
        r->temporary = temporary_name(path);
        if (!r->temporary)
            return TREK_ERR_MEMORY;
        r->file = open(r->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (r->file >= 0 && hold(r->file))
            return TREK_OK;
        int error = errno;
        bool gone = r->file >= 0;
        if (gone)
            close(r->file);
        r->file = -1;
        trek_free(r->temporary);
        r->temporary = NULL;
        errno = error;
        if (!gone && error != EEXIST) /* one that exists was left by an earlier process with this number */
            return trek_fail_system(path, "open");
    }
    return TREK_OK;
}

/* The rename is safe on disk once the directory is synced. Some file systems cannot sync a directory, and nothing can be done
 * about that. `name` is the name of a file in the directory; it is truncated in place, because nothing may fail for lack of
 * memory once the file is in its place. */
static trek_status sync_directory(char *name, const char *path)
{
    char *slash = strrchr(name, '/');
    if (slash)
        slash[slash == name] = 0;
    int file = open(slash ? name : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    trek_status status = TREK_OK;
    if (file < 0 || (fsync(file) != 0 && errno != EINVAL && errno != ENOTSUP))
        status = trek_fail_system(path, "sync of its directory");
    if (file >= 0)
        close(file);
    return status;
}

void trek_replace_sync_parent(const char *path)
{
    char *name = trek_strdup(path);
    for (size_t length = name ? strlen(name) : 0; length > 1 && name[length - 1] == '/'; length--)
        name[length - 1] = '\0';
    bool clean = trek_error_status() == TREK_OK;
    if (name)
        sync_directory(name, path);
    if (clean) /* a directory that cannot be synced is no failure */
        trek_error_clear();
    trek_free(name);
}

trek_status trek_replace_end(trek_file_replacement *r, trek_status status)
{
    if (status == TREK_OK && fsync(r->file) != 0 && errno != EINVAL)
        status = trek_fail_system(r->path, "sync");
    if (status == TREK_OK && rename(r->temporary, r->path) != 0)
        status = trek_fail_system(r->path, "rename");
    if (status != TREK_OK)
        unlink(r->temporary); /* before the lock is released */
    if (close(r->file) != 0 && status == TREK_OK)
        status = trek_fail_system(r->path, "close");
    if (status == TREK_OK)
        status = sync_directory(r->temporary, r->path);
    trek_free(r->temporary);
    *r = (trek_file_replacement){ .file = -1 };
    return status;
}

trek_status trek_replace_by_link(const char *from, const char *path, bool *done)
{
    char *name = temporary_name(path);
    *done = false;
    if (!name)
        return TREK_ERR_MEMORY;
    trek_replace_tidy(path);
    int held = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    (void)(held >= 0 && flock(held, LOCK_SH | LOCK_NB) == 0); /* nobody may remove the new name, if the file system has locks */
    bool linked = link(from, name) == 0;
    *done = linked && rename(name, path) == 0;
    if (linked) /* also if both names were already one file, which rename leaves unchanged */
        unlink(name);
    if (held >= 0)
        close(held);
    trek_status status = *done ? sync_directory(name, path) : TREK_OK;
    trek_free(name);
    return status;
}
