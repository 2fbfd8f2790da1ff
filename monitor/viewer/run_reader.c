/* SPDX-License-Identifier: Apache-2.0 */
/* Follows the files of watched runs. */
#include "monitor/viewer/run_reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "monitor/viewer/run_state.h"
#include "nn/text.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

enum { CHUNK = 1 << 18, CHUNKS_A_FILE = 32, CHUNKS_A_POLL = 128, LONGEST_LINE = 64 << 20, MOST_PROCESSES = 4096 };

/* A file, and the partial line at its end when it was last read. */
typedef struct followed {
    int process;
    ino_t inode;
    int64_t offset;
    trek_text partial;
    bool overlong;                   /* the line is skipped up to its end */
} followed;

struct trek_run_reader {
    char *path;
    trek_run_reader_opts opts;
    run_state state;
    followed *files;
    int n_files, cap_files;
    int chunks;                      /* how many this poll may still read */
};

trek_run_reader *trek_run_reader_new(const char *path, const trek_run_reader_opts *opts)
{
    if (!path) {
        trek_fail_missing("run_reader_new", "path");
        return NULL;
    }
    trek_run_reader *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->path = trek_strdup(path);
    r->opts = opts ? *opts : (trek_run_reader_opts){ 0 };
    int points = r->opts.most_points;
    r->state.most_points = points == TREK_OFF ? 0 : points == 0 ? 4096 : points < 16 ? 16 : points;
    r->state.most_notes = r->opts.most_notes > 0 ? r->opts.most_notes : 1000;
    trek_run_state_begin(&r->state);
    if (!r->path)
        trek_run_reader_free(&r);
    return r;
}

void trek_run_reader_free(trek_run_reader **reader)
{
    trek_run_reader *r = reader ? *reader : NULL;
    if (!r)
        return;
    for (int k = 0; k < r->n_files; k++)
        trek_text_clear(&r->files[k].partial);
    trek_run_state_clear(&r->state);
    trek_free(r->files);
    trek_free(r->path);
    trek_free(r);
    *reader = NULL;
}

const trek_run_state *trek_run_reader_state(const trek_run_reader *reader) { return reader ? &reader->state.seen : NULL; }

const trek_run_series *trek_run_reader_series(const trek_run_reader *reader, const char *name, bool at_epoch)
{
    const trek_run_state *s = trek_run_reader_state(reader);
    for (int k = 0; s && name && k < s->n_series; k++)
        if (s->series[k].at_epoch == at_epoch && strcmp(s->series[k].name, name) == 0)
            return &s->series[k];
    return NULL;
}

/* --- lines ------------------------------------------------------------------------------------- */

static trek_status take_line(trek_run_reader *r, int process, const char *line, size_t length)
{
    trek_run_record record;
    if (length == 0)
        return TREK_OK;
    r->state.seen.lines++;
    trek_status status = trek_run_record_read(&record, line, length);
    if (status == TREK_ERR_FORMAT) { /* not a record: from a disk that was full, or from another writer */
        r->state.seen.bad_lines++;
        trek_error_clear();
        return TREK_OK;
    }
    if (status != TREK_OK)
        return status;
    record.process = process;
    if (r->opts.on_record)
        status = r->opts.on_record(&record, r->opts.arg);
    if (status == TREK_OK)
        status = trek_run_state_take(&r->state, &record);
    trek_run_record_clear(&record);
    return status;
}

static trek_status feed(trek_run_reader *r, followed *f, const char *bytes, size_t count)
{
    trek_status status = TREK_OK;
    while (count && status == TREK_OK) {
        const char *end = memchr(bytes, '\n', count);
        size_t part = end ? (size_t)(end - bytes) : count;
        if (f->partial.length + part > LONGEST_LINE)
            f->overlong = true;
        bool whole = end && !f->partial.length && !f->overlong;
        if (whole)
            status = take_line(r, f->process, bytes, part);
        else if (!f->overlong)
            trek_text_bytes(&f->partial, bytes, part);
        if (f->partial.failed)
            status = trek_error_status();
        else if (end && !whole && !f->overlong)
            status = take_line(r, f->process, f->partial.data, f->partial.length);
        if (end || f->overlong)
            trek_text_clear(&f->partial);
        if (end && f->overlong) {
            r->state.seen.lines++;
            r->state.seen.bad_lines++;
            f->overlong = false;
        }
        part += end != NULL;
        bytes += part;
        count -= part;
    }
    return status;
}

static followed *file_of(trek_run_reader *r, int process)
{
    for (int k = 0; k < r->n_files; k++)
        if (r->files[k].process == process)
            return &r->files[k];
    if (trek_array_grow(&r->files, &r->cap_files, r->n_files + 1, sizeof *r->files) != TREK_OK)
        return NULL;
    r->files[r->n_files] = (followed){ .process = process };
    return &r->files[r->n_files++];
}

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

trek_status trek_run_reader_feed(trek_run_reader *r, int process, const char *bytes, size_t count)
{
    if (!r || !bytes)
        return trek_fail_missing("run_reader_feed", r ? "bytes" : "reader");
    followed *f = file_of(r, process);
    trek_status status = f ? feed(r, f, bytes, count) : TREK_ERR_MEMORY;
    trek_run_state_judge(&r->state, wall_clock());
    return status;
}

/* --- files ------------------------------------------------------------------------------------- */

/* Returns K of process-K.jsonl, or -1 for another file. */
static int process_of(const char *name)
{
    char *end;
    if (strncmp(name, "process-", 8) != 0 || name[8] < '0' || name[8] > '9')
        return -1;
    errno = 0;
    long process = strtol(name + 8, &end, 10);
    return errno == 0 && strcmp(end, ".jsonl") == 0 && process < MOST_PROCESSES ? (int)process : -1;
}

/* A file that was replaced or has become shorter is read from its beginning. */
static void notice(followed *f, const struct stat *file)
{
    if (f->inode == file->st_ino && f->offset <= file->st_size)
        return;
    f->inode = file->st_ino;
    f->offset = 0;
    f->overlong = false;
    trek_text_clear(&f->partial);
}

static trek_status read_new(trek_run_reader *r, followed *f, int file, const char *name, char *chunk, bool *more)
{
    for (int k = 0; k < CHUNKS_A_FILE && r->chunks > 0; k++, r->chunks--) {
        ssize_t count = pread(file, chunk, CHUNK, f->offset);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return trek_fail(TREK_ERR_IO, "%s/%s: cannot be read: %s", r->path, name, strerror(errno));
        if (count == 0)
            return TREK_OK;
        f->offset += count;
        trek_status status = feed(r, f, chunk, (size_t)count);
        if (status != TREK_OK)
            return status;
    }
    *more = true;
    return TREK_OK;
}

/* Never follows a link, because that could show another user's file to everyone who may see the run. */
static trek_status follow(trek_run_reader *r, int folder, const char *name, char *chunk, bool *more)
{
    struct stat seen;
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    trek_status status = TREK_OK;
    if (file < 0 ? errno != ENOENT && errno != ELOOP && errno != ENXIO : fstat(file, &seen) != 0)
        status = trek_fail(TREK_ERR_IO, "%s/%s: cannot be read: %s", r->path, name, strerror(errno));
    else if (file >= 0 && S_ISREG(seen.st_mode)) {
        followed *f = file_of(r, process_of(name));
        if (f)
            notice(f, &seen);
        status = f ? read_new(r, f, file, name, chunk, more) : TREK_ERR_MEMORY;
    }
    if (file >= 0)
        close(file);
    return status;
}

/* Reads the directory and closes it. */
static trek_status poll_folder(trek_run_reader *r, DIR *folder, bool *more)
{
    char *chunk = trek_alloc(CHUNK);
    trek_status status = chunk ? TREK_OK : TREK_ERR_MEMORY;
    *more = false;
    r->chunks = CHUNKS_A_POLL;
    for (struct dirent *d; folder && status == TREK_OK && (d = readdir(folder));)
        if (process_of(d->d_name) >= 0)
            status = follow(r, dirfd(folder), d->d_name, chunk, more);
    if (folder)
        closedir(folder);
    trek_free(chunk);
    trek_run_state_judge(&r->state, wall_clock());
    return status;
}

trek_status trek_run_reader_poll_in(trek_run_reader *r, int folder, bool *more)
{
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *open = again < 0 ? NULL : fdopendir(again);
    if (open)
        return poll_folder(r, open, more);
    if (again >= 0)
        close(again);
    return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", r->path, strerror(errno));
}

trek_status trek_run_reader_poll(trek_run_reader *r, bool *more)
{
    bool ignored;
    if (!r)
        return trek_fail_missing("run_reader_poll", "reader");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    DIR *folder = opendir(r->path);
    if (!folder && errno != ENOENT)
        return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", r->path, strerror(errno));
    return poll_folder(r, folder, more ? more : &ignored);
}

trek_status trek_run_reader_catch_up(trek_run_reader *r)
{
    bool more = true;
    trek_status status = TREK_OK;
    while (more && status == TREK_OK)
        status = trek_run_reader_poll(r, &more);
    return status;
}

/* --- the runs of a folder ---------------------------------------------------------------------- */

/* Returns how many files a run has there, and when the last one was written. */
static int files_of(const char *path, double *modified)
{
    DIR *folder = opendir(path);
    int files = 0;
    *modified = 0;
    for (struct dirent *d; folder && (d = readdir(folder));) {
        struct stat seen;
        if (process_of(d->d_name) < 0 || fstatat(dirfd(folder), d->d_name, &seen, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(seen.st_mode))
            continue;
        double then = (double)seen.st_mtim.tv_sec + (double)seen.st_mtim.tv_nsec * 1e-9;
        *modified = then > *modified ? then : *modified;
        files++;
    }
    if (folder)
        closedir(folder);
    return files;
}

static trek_status add_run(trek_run_entry **runs, int *n, int *capacity, const char *path, const char *name)
{
    double modified;
    int files = files_of(path, &modified);
    if (!files)
        return TREK_OK;
    if (trek_array_grow(runs, capacity, *n + 1, sizeof **runs) != TREK_OK)
        return TREK_ERR_MEMORY;
    trek_run_entry *run = &(*runs)[*n];
    *run = (trek_run_entry){ trek_strdup(name), trek_strdup(path), modified, files };
    ++*n;
    return run->name && run->path ? TREK_OK : TREK_ERR_MEMORY;
}

static int newest_first(const void *a, const void *b)
{
    const trek_run_entry *x = a, *y = b;
    return x->modified != y->modified ? (x->modified < y->modified ? 1 : -1) : strcmp(x->name, y->name);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

trek_status trek_runs_list(const char *folder, trek_run_entry **runs, int *n)
{
    int capacity = 0;
    if (!folder || !runs || !n)
        return trek_fail_missing("runs_list", folder ? runs ? "n" : "runs" : "folder");
    *runs = NULL;
    *n = 0;
    DIR *open = opendir(folder);
    if (!open)
        return trek_fail(TREK_ERR_IO, "%s: cannot be read: %s", folder, strerror(errno));
    trek_status status = add_run(runs, n, &capacity, folder, last_part(folder));
    for (struct dirent *d; status == TREK_OK && (d = readdir(open));) {
        if (d->d_name[0] == '.')
            continue;
        char *path = trek_format("%s/%s", folder, d->d_name);
        status = path ? add_run(runs, n, &capacity, path, d->d_name) : TREK_ERR_MEMORY;
        trek_free(path);
    }
    closedir(open);
    if (status != TREK_OK)
        trek_runs_free(runs, *n);
    if (*runs)
        qsort(*runs, (size_t)*n, sizeof **runs, newest_first);
    return status;
}

void trek_runs_free(trek_run_entry **runs, int n)
{
    for (int k = 0; runs && *runs && k < n; k++) {
        trek_free((*runs)[k].name);
        trek_free((*runs)[k].path);
    }
    if (runs) {
        trek_free(*runs);
        *runs = NULL;
    }
}
