/* SPDX-License-Identifier: Apache-2.0 */
/* The page as a single file: its style and script are inserted where the page names them, followed by the runs' lines
 * as data. */
#include "monitor/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "monitor/viewer/page_files.h"
#include "nn/replace_file.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

enum { CHUNK = 4 << 20 };

/* Nothing more is written after an error. */
static trek_status put(int file, const char *bytes, size_t count)
{
    while (count > 0 && trek_error_status() == TREK_OK) {
        ssize_t n = write(file, bytes, count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return trek_fail(TREK_ERR_IO, "report_write: %s", strerror(n < 0 ? errno : EIO));
        bytes += n;
        count -= (size_t)n;
    }
    return trek_error_status();
}

static trek_status put_text(int file, const char *text) { return put(file, text, strlen(text)); }

/* '<' occurs only in strings, where \u003c means the same. So nothing in the data can end the element that contains
 * it. */
static trek_status put_lines(int file, const char *lines, size_t count)
{
    while (count > 0 && trek_error_status() == TREK_OK) {
        const char *angle = memchr(lines, '<', count);
        size_t plain = angle ? (size_t)(angle - lines) : count;
        if (put(file, lines, plain) == TREK_OK && angle)
            put_text(file, "\\u003c");
        plain += angle != NULL;
        lines += plain;
        count -= plain;
    }
    return trek_error_status();
}

static trek_status put_process(int out, int file, const struct stat *about, const char *run, int number)
{
    char head[512];
    snprintf(head, sizeof head, "<script type=\"application/x-ndjson\" data-run=\"%s\" data-process=\"%d\" data-gone=\"%d\" "
             "data-modified=\"%lld\">\n", run, number, trek_page_writer_gone(file, about->st_size),
             (long long)about->st_mtim.tv_sec);
    put_text(out, head);
    for (int64_t from = 0, next; trek_error_status() == TREK_OK; from = next) {
        trek_text text = { 0 };
        if (trek_page_add_lines(&text, file, from, about->st_size, CHUNK, &next) == TREK_OK)
            put_lines(out, text.data, text.length);
        trek_text_clear(&text);
        if (next == from)
            break;
    }
    return put_text(out, "</script>\n");
}

/* Returns the last part of the path as a new string. */
static char *name_of(const char *path)
{
    char *whole = realpath(path, NULL), *name = NULL; /* allocated by the system's allocator */
    const char *slash = whole ? strrchr(whole, '/') : NULL;
    if (slash)
        name = trek_strdup(slash + 1);
    (free)(whole);
    return name;
}

static trek_status put_run(int out, const char *path)
{
    char *name = name_of(path);
    int run = name ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1, *numbers = NULL, n = 0;
    if (run < 0)
        trek_fail_after(TREK_ERR_IO, "report_write: run: %.200s: %s", path, strerror(errno));
    else if (!trek_page_name_valid(name, strlen(name)))
        trek_fail(TREK_ERR_ARGUMENT, "report_write: run: %.200s; must be a name of [A-Za-z0-9._-]+", name);
    else if ((n = trek_page_list_processes(run, &numbers)) == 0)
        trek_fail(TREK_ERR_IO, "report_write: run: %.200s contains no run: there is no process-K.jsonl", path);
    for (int k = 0; k < n && trek_error_status() == TREK_OK; k++) {
        struct stat about;
        char file_name[40];
        snprintf(file_name, sizeof file_name, "process-%d.jsonl", numbers[k]);
        int file = trek_page_open_file(run, file_name, &about);
        if (file < 0)
            continue;
        put_process(out, file, &about, name, numbers[k]);
        close(file);
    }
    trek_free(numbers);
    trek_free(name);
    if (run >= 0)
        close(run);
    return trek_error_status();
}

/* Writes the page up to `mark`, and returns what follows it. */
static const char *put_until(int out, const char *page, const char *mark)
{
    const char *end = (const char *)trek_page_index_html + trek_page_index_html_size;
    const char *at = page ? memmem(page, (size_t)(end - page), mark, strlen(mark)) : NULL;
    if (!at) {
        trek_fail_after(TREK_ERR_STATE, "report_write: the page has no %s", mark);
        return NULL;
    }
    put(out, page, (size_t)(at - page));
    return at + strlen(mark);
}

static trek_status put_page(int out, const char *const *runs, int n)
{
    const char *page = (const char *)trek_page_index_html;
    char text[512];
    unsigned char bits[16];
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return trek_fail(TREK_ERR_IO, "report_write: the system provides no random numbers");
    char nonce[33];
    for (int k = 0; k < 16; k++)
        snprintf(nonce + 2 * k, 3, "%02x", bits[k]);
    page = put_until(out, page, "<link rel=\"stylesheet\" href=\"style.css\">");
    snprintf(text, sizeof text,
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-%s'; "
             "style-src 'nonce-%s'; img-src data:; base-uri 'none'; form-action 'none'\">\n<style nonce=\"%s\">\n",
             nonce, nonce, nonce);
    put_text(out, text);
    put(out, (const char *)trek_page_style_css, trek_page_style_css_size);
    put_text(out, "</style>");
    page = put_until(out, page, "<script src=\"script.js\" defer></script>");
    const char *rest = put_until(out, page, "<!-- data -->");
    for (int k = 0; k < n && trek_error_status() == TREK_OK; k++)
        put_run(out, runs[k]);
    snprintf(text, sizeof text, "<script nonce=\"%s\">\n", nonce);
    put_text(out, text);
    put(out, (const char *)trek_page_script_js, trek_page_script_js_size);
    put_text(out, "</script>\n");
    const char *end = (const char *)trek_page_index_html + trek_page_index_html_size;
    return rest ? put(out, rest, (size_t)(end - rest)) : trek_error_status();
}

trek_status trek_report_write(const char *path, const char *const *runs, int n)
{
    trek_file_replacement place;
    if (!path || !runs)
        return trek_fail_missing("report_write", path ? "runs" : "path");
    if (n < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "report_write: n: %d runs; must be at least 1", n);
    for (int k = 0; k < n; k++)
        if (!runs[k])
            return trek_fail_missing("report_write", "runs[k]");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    if (trek_replace_begin(&place, path) != TREK_OK)
        return trek_error_status();
    return trek_replace_end(&place, put_page(place.file, runs, n));
}
