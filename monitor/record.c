/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a watched run: how they are made, and how they are written whole. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "monitor/monitor_internal.h"
#include "nn/json.h"
#include "nn/utf8.h"

void trek_monitor_value(trek_text *line, double value)
{
    char digits[40];
    trek_text_add(line, isnan(value) ? "\"NaN\"" : isinf(value) ? (value > 0 ? "\"Infinity\"" : "\"-Infinity\"")
                      : trek_text_number(value, digits));
}

/* Replaces what is not UTF-8; everything else is unchanged. */
void trek_monitor_string(trek_text *line, const char *value)
{
    if (trek_utf8_valid(value, strlen(value))) {
        trek_json_string(line, value);
        return;
    }
    char *clean = trek_strdup(value);
    for (char *c = clean; c && *c; c++)
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    trek_json_string(line, clean ? clean : "");
    trek_free(clean);
}

static void key_of(trek_text *line, const char *key) { trek_text_format(line, ",\"%s\":", key); }

void trek_monitor_word(trek_text *line, const char *key, const char *value)
{
    key_of(line, key);
    trek_monitor_string(line, value);
}

void trek_monitor_number(trek_text *line, const char *key, double value)
{
    key_of(line, key);
    trek_monitor_value(line, value);
}

void trek_monitor_known(trek_text *line, const char *key, double value)
{
    if (!isnan(value))
        trek_monitor_number(line, key, value);
}

void trek_monitor_whole(trek_text *line, const char *key, int64_t value)
{
    trek_text_format(line, ",\"%s\":%lld", key, (long long)value);
}

void trek_monitor_begin(trek_text *line, const char *kind)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    trek_text_format(line, "{\"kind\":\"%s\",\"time\":%lld.%06ld", kind, (long long)now.tv_sec, now.tv_nsec / 1000);
}

/* --- the file ---------------------------------------------------------------------------------- */

static trek_status make_folders(const char *path)
{
    char *part = trek_strdup(path);
    if (!part)
        return TREK_ERR_MEMORY;
    for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(part, 0777);
        *slash = '/';
    }
    int made = mkdir(part, 0777) == 0 || errno == EEXIST ? 0 : -1;
    trek_free(part);
    return made == 0 ? TREK_OK : TREK_ERR_IO;
}

/* Warns once for each monitor, and not while holding its lock, because the message comes back as a record. */
static void warn(trek_monitor *m, int error)
{
    if (!atomic_exchange(&m->warned, true))
        trek_log_message(TREK_LOG_LEVEL_WARNING, "the watched run cannot be written to %s: %s; training continues", m->file_path,
                         error ? strerror(error) : "its folder was removed");
}

void trek_monitor_open(trek_monitor *m)
{
    char last = '\n';
    struct stat file;
    trek_status made = make_folders(m->path);
    m->file = made == TREK_OK ? trek_monitor_open_file(m, strrchr(m->file_path, '/') + 1, O_RDWR) : -1;
    if (m->file < 0)
        warn(m, errno);
    else if (fstat(m->file, &file) == 0 && file.st_size > 0 && pread(m->file, &last, 1, file.st_size - 1) == 1)
        m->torn = last != '\n'; /* left by a process that died */
}

/* Writes all bytes to the file. Returns 0 or errno. */
static int put(trek_monitor *m, const char *bytes, size_t count)
{
    while (count) {
        ssize_t written = write(m->file, bytes, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? errno : EIO;
        m->torn = true;
        bytes += written;
        count -= (size_t)written;
    }
    m->torn = false;
    return 0;
}

void trek_monitor_write(trek_monitor *m, trek_text *line)
{
    static _Thread_local bool inside; /* a warning about writing must not be written as a line */
    int error = 0;
    if (inside || trek_forked) {
        trek_text_clear(line);
        return;
    }
    inside = true;
    trek_text_add(line, "}\n");
    pthread_mutex_lock(&m->lock);
    if (m->file >= 0 && !line->failed) {
        struct stat file;
        if (m->torn)
            error = put(m, "\n", 1);
        if (error == 0)
            error = put(m, line->data, line->length);
        trek_monitor_events_add(m, line->data, line->length - 1);
        if (error == 0 && fstat(m->file, &file) == 0 && file.st_nlink == 0)
            error = -1;
        if (error == -1) {
            close(m->file);
            m->file = -1;
        }
    }
    pthread_mutex_unlock(&m->lock);
    if (error)
        warn(m, error > 0 ? error : 0);
    trek_text_clear(line);
    inside = false;
}
