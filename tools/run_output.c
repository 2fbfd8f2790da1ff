/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "monitor/terminal.h"

static void write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, text, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return;
        text += written;
        bytes -= (size_t)written;
    }
}

void output_begin(output *s, int fd, int to, const char *head)
{
    s->fd = fd;
    s->to = to;
    s->file = -1;
    s->used = 0;
    snprintf(s->head, sizeof s->head, "%s", head);
}

void output_number(char head[320], int rank, int to)
{
    static const char colours[] = "632541"; /* cyan, green, yellow, magenta, blue, red */
    bool colour = to >= 0 && trek_terminal_colours(trek_terminal_rewrites(to));
    snprintf(head, 320, colour ? "\x1b[3%cm[%d]\x1b[0m " : "%c[%d] ", colours[rank % 6], rank);
    if (!colour)
        memmove(head, head + 1, strlen(head));
}

/* Uses a single write, so that lines of several processes are never mixed. */
static void write_line(const output *s, size_t length)
{
    char text[OUTPUT_LINE + sizeof s->head + 1];
    size_t head = strlen(s->head), bytes = head + length;
    if (s->to < 0)
        return;
    memcpy(text, s->head, head);
    memcpy(text + head, s->line, length);
    if (text[bytes - 1] != '\n')
        text[bytes++] = '\n';
    write_all(s->to, text, bytes);
}

static void pass_lines(output *s, bool all)
{
    const char *end;
    while (s->used > 0 && ((end = memchr(s->line, '\n', s->used)) || s->used == OUTPUT_LINE || all)) {
        size_t length = end ? (size_t)(end - s->line) + 1 : s->used;
        write_line(s, length);
        memmove(s->line, s->line + length, s->used -= length);
    }
}

void output_feed(output *s, const char *bytes, size_t count)
{
    if (s->file >= 0)
        write_all(s->file, bytes, count);
    while (count > 0) {
        size_t part = count < OUTPUT_LINE - s->used ? count : OUTPUT_LINE - s->used;
        memcpy(s->line + s->used, bytes, part);
        s->used += part;
        bytes += part;
        count -= part;
        pass_lines(s, false);
    }
}

void output_end(output *s)
{
    pass_lines(s, true);
    output_close(s);
}

void output_read(output *s)
{
    char bytes[OUTPUT_LINE];
    while (s->fd >= 0) {
        ssize_t got = read(s->fd, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got > 0)
            output_feed(s, bytes, (size_t)got);
        else
            output_end(s);
    }
}

void output_close(output *s)
{
    if (s->fd >= 0)
        close(s->fd);
    if (s->file >= 0)
        close(s->file);
    s->fd = s->file = -1;
}

bool output_folder(const char *folder)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *at = path + 1;; at++) {
        bool ends = *at == '\0';
        if (!ends && *at != '/')
            continue;
        *at = '\0';
        struct stat there;
        if (mkdir(path, 0777) != 0 && (errno != EEXIST || stat(path, &there) != 0 || !S_ISDIR(there.st_mode))) {
            errno = errno == EEXIST ? ENOTDIR : errno;
            return false;
        }
        if (ends)
            return true;
        *at = '/';
    }
}

bool output_files(output streams[2], const char *folder, int rank)
{
    static const char *const ends[] = { "log", "err" };
    for (int attempt = 0; attempt < 1000000; attempt++) {
        for (int k = 0; k < 2; k++) {
            char path[PATH_MAX], number[16] = "";
            if (attempt)
                snprintf(number, sizeof number, ".%d", attempt);
            if (snprintf(path, sizeof path, "%s/process-%d%s.%s", folder, rank, number, ends[k]) >= (int)sizeof path) {
                errno = ENAMETOOLONG;
                return false;
            }
            streams[k].file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
            if (streams[k].file >= 0)
                continue;
            if (errno != EEXIST)
                return false;
            if (k == 1 && streams[0].file >= 0) {
                close(streams[0].file);
                streams[0].file = -1;
            }
            break;
        }
        if (streams[0].file >= 0 && streams[1].file >= 0)
            return true;
    }
    return false;
}
