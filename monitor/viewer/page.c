/* SPDX-License-Identifier: Apache-2.0 */
/* The live page's server: what each path returns. */
#include "monitor/page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "monitor/export.h"
#include "monitor/viewer/http.h"
#include "monitor/viewer/page_files.h"
#include "monitor/viewer/run_numbers.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"
#include "tensor/tensor.h"

enum { MOST_RUNS = 10000, CHUNK = 1 << 20, MEASURED_RUNS = 8, MOST_METRICS = 16 << 20 };

/* A run whose metrics are requested. What has been read is kept. */
typedef struct measured {
    char *name;
    trek_run_reader *reader;
    int64_t asked;            /* the last request that asked for it */
} measured;

struct trek_page {
    trek_http *http;
    char *folder, *only;      /* the folder of runs; the single one that is shown, or NULL */
    char *token, *url;
    bool loopback;
    measured runs[MEASURED_RUNS];
    int64_t requests;
};

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
                             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* --- answers ---------------------------------------------------------------------------------------- */

static void say(trek_http_answer *answer, int status, const char *text)
{
    *answer =
        (trek_http_answer){ .status = status, .body = text, .size = strlen(text), .lasting = true, .next = -1, .total = -1 };
}

/* The text becomes the answer's. */
static void give(trek_http_answer *answer, trek_text *text, const char *type)
{
    answer->type = type;
    answer->size = text->length;
    answer->body = trek_text_take(text);
    if (!answer->body)
        say(answer, 500, "out of memory\n");
}

static void release(trek_http_answer *answer, void *arg)
{
    (void)arg;
    if (!answer->lasting)
        trek_free((void *)(uintptr_t)answer->body);
}

static void give_file(trek_http_answer *answer, const char *type, const unsigned char *bytes, size_t size)
{
    *answer = (trek_http_answer){ .status = 200, .type = type, .body = bytes, .size = size, .lasting = true, .next = -1,
                                  .total = -1, .policy = policy };
}

static void add_seconds(trek_text *text, const struct timespec *t)
{
    trek_text_format(text, "%lld.%03d", (long long)t->tv_sec, (int)(t->tv_nsec / 1000000));
}

static void begin_json(trek_text *text, const char *what)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    trek_text_add(text, "{\"now\":");
    add_seconds(text, &now);
    trek_text_format(text, ",\"%s\":[", what);
}

/* --- runs ------------------------------------------------------------------------------------------- */

/* Opens the run's folder if the run is one that is shown, and returns -1 otherwise. */
static int open_run(const trek_page *page, const char *name)
{
    if (!trek_page_name_valid(name, strlen(name)) || (page->only && strcmp(page->only, name) != 0))
        return -1;
    int folder = open(page->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int run = folder < 0 ? -1 : trek_page_open_folder(folder, name);
    if (folder >= 0)
        close(folder);
    return run;
}

/* Adds a run of the folder, if it is one. */
static bool add_run(trek_text *text, const trek_page *page, const char *name, bool first)
{
    struct stat about, newest = { 0 };
    char file[40];
    int *numbers, run = open_run(page, name), n = run < 0 ? 0 : trek_page_list_processes(run, &numbers);
    long long bytes = 0;
    for (int k = 0; k < n; k++) {
        snprintf(file, sizeof file, "process-%d.jsonl", numbers[k]);
        if (fstatat(run, file, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode))
            continue;
        bytes += about.st_size;
        if (about.st_mtim.tv_sec > newest.st_mtim.tv_sec)
            newest = about;
    }
    if (n > 0) {
        trek_text_format(text, "%s{\"name\":\"%s\",\"processes\":%d,\"bytes\":%lld,\"modified\":", first ? "" : ",", name, n,
                         bytes);
        add_seconds(text, &newest.st_mtim);
        trek_text_add(text, "}");
    }
    if (run >= 0) {
        if (n >= 0)
            trek_free(numbers);
        close(run);
    }
    return n > 0;
}

static void give_runs(const trek_page *page, trek_http_answer *answer)
{
    trek_text text = { 0 };
    int n = 0;
    DIR *folder = opendir(page->folder);
    begin_json(&text, "runs");
    for (struct dirent *entry; folder && n < MOST_RUNS && (entry = readdir(folder));)
        n += trek_page_name_valid(entry->d_name, strlen(entry->d_name)) && add_run(&text, page, entry->d_name, n == 0);
    if (folder)
        closedir(folder);
    trek_text_add(&text, "]}\n");
    give(answer, &text, "application/json");
}

static void give_processes(int run, trek_http_answer *answer)
{
    trek_text text = { 0 };
    int *numbers, n = trek_page_list_processes(run, &numbers);
    bool first = true;
    begin_json(&text, "processes");
    for (int k = 0; k < n; k++) {
        struct stat about;
        char name[40];
        snprintf(name, sizeof name, "process-%d.jsonl", numbers[k]);
        int file = trek_page_open_file(run, name, &about);
        if (file < 0)
            continue;
        trek_text_format(&text, "%s{\"process\":%d,\"bytes\":%lld,\"gone\":%s,\"modified\":", first ? "" : ",", numbers[k],
                         (long long)about.st_size, trek_page_writer_gone(file, about.st_size) ? "true" : "false");
        add_seconds(&text, &about.st_mtim);
        trek_text_add(&text, "}");
        first = false;
        close(file);
    }
    if (n >= 0)
        trek_free(numbers);
    trek_text_add(&text, "]}\n");
    give(answer, &text, "application/json");
}

/* Returns a whole number >= 0 that consists only of digits, or -1. */
static int64_t offset_of(const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (!text)
        return 0;
    return length > 0 && length < 18 && strspn(text, "0123456789") == length ? strtoll(text, NULL, 10) : -1;
}

static void give_lines(int run, const char *name, int64_t from, trek_http_answer *answer)
{
    struct stat about;
    int64_t next, count;
    int file = trek_page_process_of(name) < 0 ? -1 : trek_page_open_file(run, name, &about);
    if (from < 0) {
        say(answer, 400, "from: a number of bytes\n");
    } else if (file < 0) {
        say(answer, 404, "no such process\n");
    } else if (trek_page_find_lines(file, from, about.st_size, CHUNK, &count, &next) != TREK_OK) {
        say(answer, 500, "the file cannot be read\n");
    } else {
        say(answer, 200, "");
        answer->type = "application/x-ndjson; charset=utf-8";
        answer->next = next;
        answer->total = about.st_size;
        answer->file = count > 0 ? file : 0;
        answer->from = from;
        answer->size = (size_t)count;
    }
    if (file >= 0 && answer->file != file)
        close(file);
}

/* A form on another site can neither add this header nor claim this host as its origin. */
static bool from_here(const trek_http_request *request)
{
    const char *origin = trek_http_header(request, "Origin"), *host = trek_http_header(request, "Host");
    const char *site = trek_http_header(request, "Sec-Fetch-Site");
    return trek_http_header(request, "X-Trek") && (!site || strcmp(site, "same-origin") == 0) &&
           (!origin || (host && strncmp(origin, "http://", 7) == 0 && strcasecmp(origin + 7, host) == 0));
}

static void want_histograms(const trek_http_request *request, int run, trek_http_answer *answer)
{
    if (!from_here(request)) {
        say(answer, 403, "only the page itself may ask\n");
        return;
    }
    int file = openat(run, "want-histograms", O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    if (file >= 0)
        close(file);
    say(answer, file >= 0 ? 200 : 500, file >= 0 ? "at the next step\n" : "the file cannot be made\n");
}

/* --- who may ask, and for what ---------------------------------------------------------------------- */

/* Returns whether the header names this machine. Another name that leads here indicates an attack by a web page (DNS
 * rebinding). */
static bool host_is_loopback(const char *host)
{
    static const char *const names[] = { "localhost", "[::1]" };
    size_t length = host ? strcspn(host, host[0] == '[' ? "" : ":") : 0;
    const char *close_bracket = host && host[0] == '[' ? strchr(host, ']') : NULL;
    if (close_bracket)
        length = (size_t)(close_bracket + 1 - host);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (length == strlen(names[k]) && strncasecmp(host, names[k], length) == 0)
            return true;
    return length > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == length;
}

/* Takes the same time however much of the token was right. */
static bool same_token(const char *token, const char *given, size_t length)
{
    size_t own = strlen(token);
    unsigned char differs = length != own;
    for (size_t k = 0; k < own; k++)
        differs |= (unsigned char)(token[k] ^ (k < length ? given[k] : 0));
    return !differs;
}

/* Returns the path behind the token, or NULL with an answer. */
static const char *admit(const trek_page *page, const trek_http_request *request, trek_http_answer *answer)
{
    const char *path = request->path[0] == '/' ? request->path : "/";
    if (page->loopback && !host_is_loopback(trek_http_header(request, "Host"))) {
        say(answer, 403, "this page is for this machine, under its own name: localhost\n");
        return NULL;
    }
    if (!page->token)
        return path;
    size_t length = strcspn(path + 1, "/");
    if (!same_token(page->token, path + 1, length) || path[1 + length] != '/') {
        say(answer, 403, "the address lacks the token, which the program has printed\n");
        return NULL;
    }
    return path + 1 + length;
}

static void forget(measured *run)
{
    trek_run_reader_free(&run->reader);
    trek_free(run->name);
    *run = (measured){ 0 };
}

/* Returns the run's reader, which keeps no curves. It replaces the one that was not requested for the longest time. */
static trek_run_reader *reader_of(trek_page *page, const char *name)
{
    measured *run = page->runs;
    for (int k = 0; k < MEASURED_RUNS; k++) {
        measured *other = &page->runs[k];
        bool same = other->name && strcmp(other->name, name) == 0;
        run = same || other->asked < run->asked ? other : run;
        if (same)
            break;
    }
    if (!run->name || strcmp(run->name, name) != 0) {
        forget(run);
        run->name = trek_strdup(name);
        run->reader = trek_run_reader_new(name, &(trek_run_reader_opts){ .most_points = 16, .most_notes = 1 });
    }
    run->asked = ++page->requests;
    if (!run->name || !run->reader)
        forget(run);
    return run->reader;
}

/* Answers in the form that Prometheus asks for. */
static void give_metrics(trek_page *page, int folder, const char *name, trek_http_answer *answer)
{
    bool more = false;
    trek_text text = { 0 };
    trek_run_reader *reader = folder < 0 ? NULL : reader_of(page, name);
    if (!reader || trek_run_reader_poll_in(reader, folder, &more) != TREK_OK) {
        say(answer, 500, "the run cannot be read\n");
    } else if (more) {
        say(answer, 503, "the run is being read\n");
    } else {
        trek_export_add_metrics(&text, name, trek_run_reader_state(reader));
        give(answer, &text, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    }
    if (answer->size > MOST_METRICS) {
        release(answer, NULL);
        say(answer, 500, "the run tells too much\n");
    }
}

static void give_only_metrics(trek_page *page, trek_http_answer *answer)
{
    int run = open_run(page, page->only);
    give_metrics(page, run, page->only, answer);
    if (run >= 0)
        close(run);
}

static void handle_run(trek_page *page, const trek_http_request *request, const char *rest, bool post,
                       trek_http_answer *answer)
{
    char name[256];
    size_t length = strcspn(rest, "/");
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : 0), rest);
    int run = rest[length] == '/' ? open_run(page, name) : -1;
    const char *what = rest + length + (rest[length] == '/');
    if (run < 0)
        say(answer, 404, "no such run\n");
    else if (strcmp(what, "want-histograms") == 0 && post)
        want_histograms(request, run, answer);
    else if (post || strcmp(what, "want-histograms") == 0)
        say(answer, 405, "not that way\n");
    else if (strcmp(what, "processes") == 0)
        give_processes(run, answer);
    else if (strcmp(what, "metrics") == 0)
        give_metrics(page, run, name, answer);
    else
        give_lines(run, what, offset_of(trek_http_argument(request, "from")), answer);
    if (run >= 0)
        close(run);
}

static void handle(const trek_http_request *request, trek_http_answer *answer, void *arg)
{
    trek_page *page = arg;
    const char *path = admit(page, request, answer), *runs = "/api/runs/";
    bool post = strcmp(request->method, "POST") == 0;
    bool known = post || strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0;
    if (!path)
        return;
    if (!known || (post && strncmp(path, runs, strlen(runs)) != 0))
        say(answer, 405, "not that way\n");
    else if (strcmp(path, "/") == 0)
        give_file(answer, "text/html; charset=utf-8", trek_page_index_html, trek_page_index_html_size);
    else if (strcmp(path, "/style.css") == 0)
        give_file(answer, "text/css; charset=utf-8", trek_page_style_css, trek_page_style_css_size);
    else if (strcmp(path, "/script.js") == 0)
        give_file(answer, "text/javascript; charset=utf-8", trek_page_script_js, trek_page_script_js_size);
    else if (strcmp(path, "/api/runs") == 0)
        give_runs(page, answer);
    else if (strcmp(path, "/metrics") == 0 && page->only)
        give_only_metrics(page, answer);
    else if (strncmp(path, runs, strlen(runs)) == 0)
        handle_run(page, request, path + strlen(runs), post, answer);
    else
        say(answer, 404, "nothing is here\n");
}

/* --- a page ----------------------------------------------------------------------------------------- */

static bool token_valid(const char *token)
{
    size_t length = strlen(token);
    for (const char *c = token; *c; c++)
        if (*c == '.' || !trek_page_name_valid(c, 1))
            return false;
    return length >= 16 && length <= 128;
}

/* Returns 128 random bits. */
static char *new_token(void)
{
    unsigned char bits[16];
    char text[33];
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return trek_fail_null(TREK_ERR_IO, "page_serve: the system provides no random numbers");
    for (int k = 0; k < 16; k++)
        snprintf(text + 2 * k, 3, "%02x", bits[k]);
    return trek_strdup(text);
}

/* Sets folder, and `only` if it is itself a run. */
static trek_status find_folder(trek_page *page, const char *folder)
{
    struct stat about;
    char *path = realpath(folder, NULL), *slash; /* allocated by the system's allocator */
    if (!path || stat(path, &about) != 0 || !S_ISDIR(about.st_mode))
        trek_fail(TREK_ERR_IO, "page_serve: folder: %.200s: %s", folder, strerror(path ? ENOTDIR : errno));
    else if (trek_page_is_run(path) && (slash = strrchr(path, '/'))[1]) {
        page->only = trek_strdup(slash + 1);
        slash[slash == path] = '\0';
        if (page->only && !trek_page_name_valid(page->only, strlen(page->only)))
            trek_fail(TREK_ERR_ARGUMENT, "page_serve: run: %.200s; must be a name of [A-Za-z0-9._-]+", page->only);
    }
    if (trek_error_status() == TREK_OK)
        page->folder = trek_strdup(path);
    (free)(path);
    return trek_error_status();
}

static trek_status begin(trek_page *page, const trek_page_opts *opts)
{
    const char *address = opts->address && *opts->address ? opts->address : "127.0.0.1";
    int port = opts->port == TREK_OFF ? 0 : opts->port ? opts->port : TREK_PAGE_PORT, got = port;
    if (find_folder(page, opts->folder) != TREK_OK)
        return trek_error_status();
    int socket = trek_http_listen(address, port, &got, &page->loopback);
    if (socket < 0)
        return trek_error_status();
    if (opts->token || !page->loopback)
        page->token = opts->token && *opts->token ? trek_strdup(opts->token) : new_token();
    bool v6 = strchr(address, ':');
    page->url = trek_format("http://%s%s%s:%d/%s%s", v6 ? "[" : "", address, v6 ? "]" : "", got, page->token ? page->token : "",
                            page->token ? "/" : "");
    if (!page->url || ((opts->token || !page->loopback) && !page->token)) {
        close(socket);
        return trek_error_status();
    }
    page->http = trek_http_start(socket, handle, release, page);
    return page->http ? TREK_OK : trek_error_status();
}

trek_page *trek_page_serve(const trek_page_opts *opts)
{
    if (!opts || !opts->folder) {
        trek_fail_missing("page_serve", opts ? "opts.folder" : "opts");
        return NULL;
    }
    if (opts->port < TREK_OFF || opts->port > 65535)
        return trek_fail_null(TREK_ERR_ARGUMENT, "page_serve: .port: %d; must be TREK_OFF, or 0 to 65535", opts->port);
    if (opts->token && *opts->token && !token_valid(opts->token))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "page_serve: .token: wrong length or characters; must be 16 to 128 of [A-Za-z0-9_-]");
    if (trek_error_status() != TREK_OK)
        return NULL;
    trek_page *page = trek_calloc(1, sizeof *page);
    if (page && begin(page, opts) != TREK_OK)
        trek_page_free(&page);
    return page;
}

/* Splits ADDRESS:PORT, [ADDRESS]:PORT or PORT. Returns false if it is none of these. */
static bool split_address(const char *text, char *address, size_t size, int *port)
{
    const char *colon = strrchr(text, ':'), *digits = colon ? colon + 1 : text;
    size_t length = colon ? (size_t)(colon - text) : 0, n = strlen(digits);
    if (n < 1 || n > 5 || strspn(digits, "0123456789") != n || (colon && length == 0) || length >= size)
        return false;
    bool bracketed = length > 2 && text[0] == '[' && text[length - 1] == ']';
    if (!bracketed && memchr(text, ':', length))
        return false; /* an IPv6 address needs brackets, otherwise its end is ambiguous */
    snprintf(address, size, "%.*s", (int)(bracketed ? length - 2 : length), text + bracketed);
    *port = atoi(digits);
    return true;
}

trek_page *trek_page_from_environment(const char *folder)
{
    const char *text = getenv("TREK_MONITOR");
    char address[256];
    int port;
    if (!text || !*text)
        return NULL;
    if (!split_address(text, address, sizeof address, &port))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "page_from_environment: TREK_MONITOR=%.200s; must be PORT, ADDRESS:PORT or [ADDRESS]:PORT", text);
    trek_page *page =
        trek_page_serve(&(trek_page_opts){ .folder = folder, .port = port ? port : TREK_OFF, .address = address });
    if (page)
        fprintf(stderr, "trek: this run is shown at %s\n", trek_page_address(page));
    return page;
}

const char *trek_page_address(const trek_page *page) { return page ? page->url : ""; }

void trek_page_free(trek_page **page)
{
    if (!page || !*page)
        return;
    trek_page *p = *page;
    trek_http_stop(&p->http);
    for (int k = 0; k < MEASURED_RUNS; k++)
        forget(&p->runs[k]);
    trek_free(p->folder);
    trek_free(p->only);
    trek_free(p->token);
    trek_free(p->url);
    trek_free(p);
    *page = NULL;
}
