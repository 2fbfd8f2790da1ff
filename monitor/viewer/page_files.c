/* SPDX-License-Identifier: Apache-2.0 */
/* The files of runs, as the page and the report read them. */
#include "monitor/viewer/page_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

enum { LONGEST_LINE = 64 << 20 };

bool trek_page_name_valid(const char *name, size_t length)
{
    if (length < 1 || length > 255 || name[0] == '.')
        return false;
    for (size_t k = 0; k < length; k++) {
        char c = name[k];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

int trek_page_process_of(const char *name)
{
    char same[40];
    int number;
    if (sscanf(name, "process-%7d.jsonl", &number) != 1 || number < 0 || number >= TREK_PAGE_PROCESSES)
        return -1;
    snprintf(same, sizeof same, "process-%d.jsonl", number);
    return strcmp(same, name) == 0 ? number : -1;
}

bool trek_page_is_run(const char *path)
{
    DIR *folder = opendir(path);
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = trek_page_process_of(entry->d_name) >= 0;
    if (folder)
        closedir(folder);
    return found;
}

int trek_page_open_folder(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int trek_page_open_file(int at, const char *name, struct stat *about)
{
    int file = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* opening a pipe would wait */
    if (file >= 0 && (fstat(file, about) != 0 || !S_ISREG(about->st_mode))) {
        close(file);
        file = -1;
    }
    return file;
}

static int compare_numbers(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int trek_page_list_processes(int run, int **numbers)
{
    int again = openat(run, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0, capacity = 0;
    DIR *folder = again < 0 ? NULL : fdopendir(again);
    *numbers = NULL;
    if (!folder && again >= 0)
        close(again);
    for (struct dirent *entry; folder && n >= 0 && (entry = readdir(folder));) {
        int number = trek_page_process_of(entry->d_name);
        if (number < 0)
            continue;
        if (n == capacity) {
            int *more = trek_realloc(*numbers, sizeof **numbers * (size_t)(capacity = capacity ? 2 * capacity : 16));
            if (!more) {
                n = -1;
                break;
            }
            *numbers = more;
        }
        (*numbers)[n++] = number;
    }
    if (folder)
        closedir(folder);
    if (n > 1)
        qsort(*numbers, (size_t)n, sizeof **numbers, compare_numbers);
    if (n < 0) {
        trek_free(*numbers);
        *numbers = NULL;
    }
    return n;
}

/* Reads up to `count` bytes or to the file's end. Returns -1 on an error. */
static int64_t read_at(int file, char *bytes, int64_t count, int64_t from)
{
    int64_t got = 0;
    while (got < count) {
        ssize_t n = pread(file, bytes + got, (size_t)(count - got), (off_t)(from + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        got += n;
    }
    return got;
}

static int64_t whole_lines(const char *bytes, int64_t count)
{
    const char *last = count > 0 ? memrchr(bytes, '\n', (size_t)count) : NULL;
    return last ? last + 1 - bytes : 0;
}

trek_status trek_page_add_lines(trek_text *text, int file, int64_t from, int64_t size, int64_t most, int64_t *next)
{
    *next = from;
    for (; from < size; most *= 8) { /* until it contains a whole line */
        int64_t count = size - from < most ? size - from : most, got, whole;
        char *bytes = trek_alloc((size_t)count);
        if (!bytes)
            return trek_error_status();
        got = read_at(file, bytes, count, from);
        whole = whole_lines(bytes, got);
        trek_text_bytes(text, bytes, (size_t)(whole > 0 ? whole : 0));
        trek_free(bytes);
        if (got < 0)
            return trek_fail(TREK_ERR_IO, "page: the file of a run cannot be read: %s", strerror(errno));
        *next = from + whole;
        if (whole > 0 || count == size - from || count >= LONGEST_LINE)
            break;
    }
    return text->failed ? trek_fail(TREK_ERR_MEMORY, "page: out of memory for the lines of a run") : TREK_OK;
}

/* Returns the last line end in file[from..to), or the first one behind it; -1 if there is none before `end`, -2 on an
 * error. */
static int64_t find_end(int file, int64_t from, int64_t to, int64_t end)
{
    char bytes[1 << 16];
    int64_t found = -1, got;
    for (int64_t at = from; at < end && (at < to || found < 0); at += got) {
        int64_t count = at < to ? to - at : end - at;
        got = read_at(file, bytes, count < (int64_t)sizeof bytes ? count : (int64_t)sizeof bytes, at);
        if (got <= 0)
            return got < 0 ? -2 : found;
        const char *line = at < to ? memrchr(bytes, '\n', (size_t)got) : memchr(bytes, '\n', (size_t)got);
        found = line ? at + (line - bytes) : found;
    }
    return found;
}

trek_status trek_page_find_lines(int file, int64_t from, int64_t size, int64_t most, int64_t *count, int64_t *next)
{
    int64_t longest = from < size - LONGEST_LINE ? from + LONGEST_LINE : size;
    int64_t end = find_end(file, from, from < size - most ? from + most : size, longest);
    if (end == -2)
        return trek_fail(TREK_ERR_IO, "page: the file of a run cannot be read: %s", strerror(errno));
    *count = end < 0 ? 0 : end + 1 - from;
    *next = end >= 0 ? end + 1 : longest < size ? longest : from;
    return TREK_OK;
}

/* Returns what follows "key": in a line, or NULL. A record that trek has written needs no JSON parser. */
static const char *value_of(const char *line, const char *key)
{
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\":", key);
    const char *at = strstr(line, pattern);
    return at ? at + strlen(pattern) + strspn(at + strlen(pattern), " ") : NULL;
}

bool trek_page_writer_gone(int file, int64_t size)
{
    char host[256] = "", line[4096];
    int64_t got = read_at(file, line, size < (int64_t)sizeof line - 1 ? size : (int64_t)sizeof line - 1, 0);
    line[got > 0 ? got : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    const char *where = value_of(line, "host"), *pid = value_of(line, "pid");
    if (!where || *where != '"' || !pid || gethostname(host, sizeof host - 1) != 0)
        return false;
    size_t length = strlen(host);
    long number = strtol(pid, NULL, 10);
    return strncmp(where + 1, host, length) == 0 && where[1 + length] == '"' && number > 1 && kill((pid_t)number, 0) != 0 &&
           errno == ESRCH;
}
