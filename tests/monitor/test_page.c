/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/page and monitor/report: what each path answers, whom it refuses, parts of files, many and hanging clients, reports. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "monitor/page.h"
#include "monitor/report.h"
#include "tensor/memory_internal.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static char folder[64], path[256];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static char first[] = "{\"kind\":\"run\",\"time\":1.5,\"version\":1,\"run\":\"a\",\"host\":\"elsewhere\",\"pid\":1}\n";

static int set_up(void **state)
{
    trek_error_clear();
    strcpy(folder, "/tmp/trek_page_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    mkdir(in_folder("a"), 0755);
    mkdir(in_folder("b.2"), 0755);
    mkdir(in_folder("empty"), 0755);
    put("a/process-0.jsonl", first);
    put("a/process-1.jsonl", "{\"kind\":\"end\",\"time\":2,\"status\":\"done\"}\n{\"kind\":\"half");
    put("b.2/process-0.jsonl", first);
    put("secret", "secret\n");
    return 0;
}

static int tear_down(void **state)
{
    trek_error_clear();
    return test_remove(folder);
}

/* --- a client --------------------------------------------------------------------------------------- */

static int port_of(const trek_page *page)
{
    const char *address = trek_page_address(page);
    int port = atoi(strrchr(address, ':') + 1);
    assert_true(port > 0);
    return port;
}

static int connect_from(uint32_t own, int port)
{
    struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr = { htonl(own) } };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = { .tv_sec = 10 };
    setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(bind(file, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(file, (struct sockaddr *)&to, sizeof to), 0);
    return file;
}

static int connect_to(int port) { return connect_from(INADDR_LOOPBACK, port); }

static char answer[3 << 20];

/* Sends a request and reads all; returns the status. */
static int ask_by(int file, const char *request)
{
    size_t have = 0;
    assert_int_equal(send(file, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    for (ssize_t n; (n = recv(file, answer + have, sizeof answer - 1 - have, 0)) > 0;)
        have += (size_t)n;
    answer[have] = '\0';
    close(file);
    int status = 0;
    sscanf(answer, "HTTP/1.1 %d", &status);
    return status;
}

static int ask(const trek_page *page, const char *request) { return ask_by(connect_to(port_of(page)), request); }

static int get(const trek_page *page, const char *what)
{
    char request[2048];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n\r\n", what, port_of(page));
    return ask(page, request);
}

static int post(const trek_page *page, const char *what, const char *headers)
{
    char request[2048];
    snprintf(request, sizeof request,
             "POST %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\nContent-Length: 0\r\n%s\r\n", what, port_of(page),
             headers);
    return ask(page, request);
}

static const char *body(void)
{
    const char *at = strstr(answer, "\r\n\r\n");
    return at ? at + 4 : "";
}

static trek_page *serve(const char *where)
{
    trek_page *page = trek_page_serve(&(trek_page_opts){ .folder = where, .port = TREK_OFF });
    if (!page && trek_error_status() == TREK_ERR_UNSUPPORTED) {
        trek_error_clear();
        skip();
    }
    assert_non_null(page);
    return page;
}

/* --- what it answers -------------------------------------------------------------------------------- */

static void test_paths(void **state)
{
    trek_page *page = serve(folder);
    assert_string_equal(strncmp(trek_page_address(page), "http://127.0.0.1:", 17) ? trek_page_address(page) : "", "");
    assert_int_equal(get(page, "/"), 200);
    assert_non_null(strstr(body(), "<title>trek</title>"));
    assert_non_null(strstr(answer, "Content-Security-Policy: default-src 'none'; script-src 'self';"));
    assert_non_null(strstr(answer, "X-Content-Type-Options: nosniff"));
    assert_int_equal(get(page, "/style.css"), 200);
    assert_int_equal(get(page, "/script.js"), 200);
    assert_non_null(strstr(body(), "window.trek"));
    assert_int_equal(get(page, "/api/runs"), 200);
    assert_non_null(strstr(body(), "{\"name\":\"a\",\"processes\":2,"));
    assert_non_null(strstr(body(), "{\"name\":\"b.2\",\"processes\":1,"));
    assert_null(strstr(body(), "empty"));
    assert_int_equal(get(page, "/api/runs/a/processes"), 200);
    assert_non_null(strstr(body(), "{\"process\":0,\"bytes\":"));
    assert_non_null(strstr(body(), "{\"process\":1,\"bytes\":"));
    assert_int_equal(get(page, "/nothing"), 404);
    assert_int_equal(get(page, "/api/runs/none/processes"), 404);
    assert_int_equal(get(page, "/api/runs/a/metrics"), 200);
    assert_non_null(strstr(answer, "application/openmetrics-text"));
    assert_non_null(strstr(body(), "# EOF\n"));
    assert_int_equal(get(page, "/api/runs/none/metrics"), 404);
    assert_int_equal(get(page, "/metrics"), 404); /* of which run? */
    assert_int_equal(get(page, "/api/runs/empty/process-0.jsonl"), 404);
    trek_page_free(&page);
    assert_null(page);
    trek_page_free(&page);
    trek_page_free(NULL);
    assert_string_equal(trek_page_address(NULL), "");
}

static void test_lines(void **state)
{
    char request[100], wanted[100];
    trek_page *page = serve(folder);
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl"), 200);
    assert_string_equal(body(), first);
    snprintf(wanted, sizeof wanted, "X-Trek-Next: %zu\r\n", strlen(first));
    assert_non_null(strstr(answer, wanted));
    assert_int_equal(get(page, "/api/runs/a/process-1.jsonl?from=0"), 200); /* the half line is not there yet */
    assert_string_equal(body(), "{\"kind\":\"end\",\"time\":2,\"status\":\"done\"}\n");
    put("a/process-1.jsonl", "\"}\n");
    const char *next = strstr(answer, "X-Trek-Next: ");
    assert_non_null(next);
    snprintf(request, sizeof request, "/api/runs/a/process-1.jsonl?from=%d", atoi(next + 13));
    assert_int_equal(get(page, request), 200);
    assert_string_equal(body(), "{\"kind\":\"half\"}\n");
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl?from=100000"), 200);
    assert_string_equal(body(), "");
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl?from=-1"), 400);
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl?from=x"), 400);
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl?from="), 400);
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl?from=99999999999999999999"), 400);
    trek_page_free(&page);
}

/* Chunks are bounded, whole lines, and together the file; a line that is longer than one comes whole. */
static void test_long_files(void **state)
{
    trek_page *page = serve(folder);
    FILE *file = fopen(in_folder("a/process-2.jsonl"), "w");
    for (int k = 0; k < 20000; k++)
        fprintf(file, "{\"kind\":\"x\",\"k\":%d,\"pad\":\"%0100d\"}\n", k, k);
    fprintf(file, "{\"pad\":\"%01500000d\"}\n", 7);
    fclose(file);
    struct stat about;
    stat(path, &about);
    long long from = 0;
    int chunks = 0, k = 0;
    while (from < about.st_size && chunks++ < 20) {
        char request[100];
        snprintf(request, sizeof request, "/api/runs/a/process-2.jsonl?from=%lld", from);
        assert_int_equal(get(page, request), 200);
        const char *b = body(), *next = strstr(answer, "X-Trek-Next: ");
        assert_true(next && atoll(next + 13) == from + (long long)strlen(b) && strlen(b) > 0 && b[strlen(b) - 1] == '\n');
        from = atoll(next + 13);
        for (const char *at = b; (at = strstr(at, "\"k\":")); at += 4)
            assert_int_equal(atoi(at + 4), k++);
    }
    assert_int_equal(k, 20000);
    assert_int_equal(from, about.st_size);
    assert_true(chunks >= 4);
    trek_page_free(&page);
}

/* A line that is longer than all limits is passed over, and the one behind it comes. */
static void test_overlong_line(void **state)
{
    static const char last[] = "\n{\"kind\":\"x\"}\n";
    char request[100] = "/api/runs/a/process-3.jsonl";
    const char *next;
    trek_page *page = serve(folder);
    int file = open(in_folder("a/process-3.jsonl"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(pwrite(file, last, sizeof last - 1, 65 << 20), (ssize_t)sizeof last - 1);
    close(file);
    assert_int_equal(get(page, request), 200);
    assert_string_equal(body(), "");
    assert_non_null(next = strstr(answer, "X-Trek-Next: "));
    assert_int_equal(atoll(next + 13), 64 << 20);
    put("a/process-3.jsonl", "{\"half");
    snprintf(request, sizeof request, "/api/runs/a/process-3.jsonl?from=%d", (65 << 20) + 1);
    assert_int_equal(get(page, request), 200);
    assert_string_equal(body(), "{\"kind\":\"x\"}\n");
    trek_page_free(&page);
}

/* Metrics of a long run: no request reads all of it, and none answers with half. */
static void test_long_metrics(void **state)
{
    int status, asked = 0;
    trek_page *page = serve(folder);
    FILE *file = fopen(in_folder("a/process-2.jsonl"), "w");
    fputs("{\"kind\":\"scalars\",\"time\":1,\"step\":1,\"epoch\":0,\"values\":{\"loss\":1}}\n", file);
    for (int k = 0; k < 20; k++)
        fprintf(file, "{\"pad\":\"%01000000d\"}\n", k);
    fputs("{\"kind\":\"scalars\",\"time\":2,\"step\":2,\"epoch\":0,\"values\":{\"loss\":0.5}}\n", file);
    fclose(file);
    while ((status = get(page, "/api/runs/a/metrics")) == 503 && asked++ < 100)
        assert_non_null(strstr(answer, "Retry-After: 1"));
    assert_int_equal(status, 200);
    assert_in_range(asked, 1, 10);
    assert_non_null(strstr(body(), "name=\"loss\",at=\"step\"} 0.5\n"));
    trek_page_free(&page);
}

/* --- whom it refuses -------------------------------------------------------------------------------- */

static void test_outside(void **state)
{
    static const char *const ways[] = {
        "/api/runs/../secret", "/api/runs/a/../../secret", "/api/runs/..%2f/secret", "/api/runs/a/..%2f..%2fsecret",
            "/api/runs/./processes",
        "/api/runs/a/secret", "/api/runs/a%00/processes", "/api/runs//processes", "/api/runs/a/process-0.jsonl/",
        "/api/runs/a/process-00.jsonl",
        "/api/runs/a/process--1.jsonl", "/api/runs/a/process-7.jsonl", "/api/runs/link/processes", "/api/runs/a/process-8.jsonl",
        "/api/runs/a/process-9.jsonl", "/api/runs/a", "/api/runs/a/want-histogram" };
    trek_page *page = serve(folder);
    char target[128];
    snprintf(target, sizeof target, "%s/secret", folder);
    put("secret", "{\"kind\":\"scalars\",\"time\":1,\"step\":3,\"epoch\":0,\"values\":{\"secret\":1}}\n");
    assert_int_equal(symlink(target, in_folder("a/process-8.jsonl")), 0); /* inside the folder, too: no link is followed */
    assert_int_equal(symlink("/etc", in_folder("link")), 0);
    assert_int_equal(mkfifo(in_folder("a/process-9.jsonl"), 0644), 0);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        int status = get(page, ways[k]);
        if (status != 404 && strcmp(body(), first) != 0)
            fail_msg("%s: %d %s", ways[k], status, body());
        assert_null(strstr(body(), "secret"));
    }
    assert_int_equal(get(page, "/api/runs/a/metrics"), 200);
    assert_null(strstr(body(), "secret"));
    trek_page_free(&page);
}

static void test_hosts(void **state)
{
    static const char *const good[] = { "localhost", "LOCALHOST:80", "127.0.0.1:6006", "127.1.2.3", "[::1]:5" };
    static const char *const bad[] = { "evil.example", "evil.example:6006", "localhost.evil.example", "127.0.0.1.evil.example",
                                       "127.evil", "[::2]", "", "10.0.0.1" };
    trek_page *page = serve(folder);
    char request[300];
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        snprintf(request, sizeof request, "GET /api/runs HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", good[k]);
        assert_int_equal(ask(page, request), 200);
    }
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        snprintf(request, sizeof request, "GET /api/runs HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", bad[k]);
        assert_int_equal(ask(page, request), 403);
    }
    assert_int_equal(ask(page, "GET / HTTP/1.0\r\n\r\n"), 403);
    assert_int_equal(ask(page, "DELETE /api/runs/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 405);
    assert_int_equal(ask(page, "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), 405);
    trek_page_free(&page);
}

static bool wanted(void) { return access(in_folder("a/want-histograms"), F_OK) == 0; }

static void test_want_histograms(void **state)
{
    char headers[200];
    trek_page *page = serve(folder);
    const char *what = "/api/runs/a/want-histograms";
    assert_int_equal(post(page, what, ""), 403); /* a form of another site */
    assert_int_equal(post(page, what, "X-Trek: 1\r\nOrigin: http://evil.example\r\n"), 403);
    assert_int_equal(post(page, what, "X-Trek: 1\r\nOrigin: null\r\n"), 403);
    assert_int_equal(post(page, what, "X-Trek: 1\r\nSec-Fetch-Site: cross-site\r\n"), 403);
    assert_int_equal(get(page, what), 405);
    assert_int_equal(post(page, "/api/runs/a/processes", "X-Trek: 1\r\n"), 405);
    assert_int_equal(post(page, "/api/runs/none/want-histograms", "X-Trek: 1\r\n"), 404);
    assert_false(wanted());
    snprintf(headers, sizeof headers, "X-Trek: 1\r\nOrigin: http://localhost:%d\r\nSec-Fetch-Site: same-origin\r\n",
             port_of(page));
    assert_int_equal(post(page, what, headers), 200);
    assert_true(wanted());
    assert_int_equal(post(page, what, headers), 200); /* once more: it is there already */
    unlink(in_folder("a/want-histograms"));
    char target[128];
    snprintf(target, sizeof target, "%s/made", folder);
    assert_int_equal(symlink(target, in_folder("a/want-histograms")), 0);
    assert_int_equal(post(page, what, headers), 500); /* nothing is made through a link */
    assert_int_not_equal(access(target, F_OK), 0);
    trek_page_free(&page);
}

static void test_tokens(void **state)
{
    char what[300];
    trek_page_free(&(trek_page *){ serve(folder) }); /* skips without the library */
    trek_page *page = trek_page_serve(
        &(trek_page_opts){ .folder = folder, .port = TREK_OFF, .address = "0.0.0.0" }); /* not loopback: a token of its own */
    assert_non_null(page);
    char token[64];
    assert_int_equal(sscanf(trek_page_address(page), "http://0.0.0.0:%*d/%63[0-9a-f]/", token), 1);
    assert_int_equal(strlen(token), 32);
    trek_page *other = trek_page_serve(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .address = "0.0.0.0" });
    assert_null(strstr(trek_page_address(other), token)); /* another one each time */
    trek_page_free(&other);
    assert_int_equal(get(page, "/"), 403);
    assert_int_equal(get(page, "/api/runs"), 403);
    assert_int_equal(get(page, "//api/runs"), 403);
    snprintf(what, sizeof what, "/%s", token);
    assert_int_equal(get(page, what), 403);
    snprintf(what, sizeof what, "/%s/api/runs", token);
    assert_int_equal(get(page, what), 200);
    assert_int_equal(ask(page, "GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 403);
    char request[400];
    snprintf(request, sizeof request, "GET /%s/ HTTP/1.1\r\nHost: machine.example:6006\r\nConnection: close\r\n\r\n", token);
    assert_int_equal(ask(page, request), 200); /* any name leads here, with the token */
    token[31] ^= 1;
    snprintf(what, sizeof what, "/%s/api/runs", token);
    assert_int_equal(get(page, what), 403);
    token[31] = '\0';
    snprintf(what, sizeof what, "/%s/api/runs", token);
    assert_int_equal(get(page, what), 403);
    trek_page_free(&page);
    page = trek_page_serve(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .token = "0123456789abcdef_-" });
    assert_non_null(page);
    assert_int_equal(get(page, "/api/runs"), 403);
    assert_int_equal(get(page, "/0123456789abcdef_-/api/runs"), 200);
    trek_page_free(&page);
    page = trek_page_serve(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .token = "" });
    assert_non_null(page);
    assert_int_equal(sscanf(trek_page_address(page), "http://127.0.0.1:%*d/%63[0-9a-f]/", token), 1);
    assert_int_equal(get(page, "/api/runs"), 403);
    trek_page_free(&page);
}

/* --- one run, many clients, the end ----------------------------------------------------------------- */

static void test_one_run(void **state)
{
    trek_page *page = serve(in_folder("a"));
    assert_int_equal(get(page, "/api/runs"), 200);
    assert_non_null(strstr(body(), "\"name\":\"a\""));
    assert_null(strstr(body(), "b.2"));
    assert_int_equal(get(page, "/api/runs/a/process-0.jsonl"), 200);
    assert_int_equal(get(page, "/api/runs/b.2/process-0.jsonl"), 404);
    trek_page_free(&page);
}

static void *client(void *arg)
{
    static const char request[] = "GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    intptr_t good = 0;
    for (int k = 0; k < 25; k++) {
        char text[4096] = "";
        size_t have = 0;
        int file = connect_to(*(int *)arg);
        if (send(file, request, sizeof request - 1, MSG_NOSIGNAL) > 0)
            for (ssize_t n; have < sizeof text - 1 && (n = recv(file, text + have, sizeof text - 1 - have, 0)) > 0;)
                have += (size_t)n;
        good += strstr(text, "\"name\":\"a\"") != NULL;
        close(file);
    }
    return (void *)good;
}

static void test_many_clients(void **state)
{
    trek_page *page = serve(folder);
    pthread_t threads[8];
    int port = port_of(page);
    for (int k = 0; k < 8; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, client, &port), 0);
    for (int k = 0; k < 8; k++) {
        void *good;
        pthread_join(threads[k], &good);
        assert_int_equal((intptr_t)good, 25);
    }
    trek_page_free(&page);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Clients that send half a request, or read nothing, keep neither others from the page nor it from ending. */
static void test_hanging_clients(void **state)
{
    trek_page *page = serve(folder);
    int port = port_of(page), half = connect_to(port), deaf = connect_to(port), silent = connect_to(port);
    assert_true(send(half, "GET / HT", 8, MSG_NOSIGNAL) == 8);
    for (int k = 0; k < 40; k++) {
        static const char request[] = "GET /script.js HTTP/1.1\r\nHost: localhost\r\n\r\n";
        send(deaf, request, sizeof request - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    assert_int_equal(get(page, "/api/runs"), 200);
    double from = seconds();
    trek_page_free(&page);
    assert_true(seconds() - from < 20); /* not after the 30 s that a client may be idle */
    char byte;
    assert_true(recv(silent, &byte, 1, 0) <= 0);
    close(half);
    close(deaf);
    close(silent);
}

/* One address, with as many connections as it likes, leaves room for others. */
static void test_greedy_address(void **state)
{
    trek_page *page = serve(folder);
    int files[70], port = port_of(page);
    for (int k = 0; k < 70; k++)
        files[k] = connect_to(port);
    assert_int_equal(ask_by(connect_from(INADDR_LOOPBACK + 1, port),
                            "GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 200);
    for (int k = 0; k < 70; k++)
        close(files[k]);
    trek_page_free(&page);
}

/* A request that is too long ends alone. */
static void test_too_much(void **state)
{
    trek_page *page = serve(folder);
    static char request[200000];
    int n = sprintf(request, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ");
    memset(request + n, 'x', 100000);
    strcpy(request + n + 100000, "\r\n\r\n");
    int file = connect_to(port_of(page)), status = 0;
    (void)!send(file, request, strlen(request), MSG_NOSIGNAL);
    ssize_t got = recv(file, answer, 100, 0);
    answer[got > 0 ? got : 0] = '\0';
    sscanf(answer, "HTTP/1.1 %d", &status);
    assert_true(got <= 0 || status >= 400);
    close(file);
    n = sprintf(request, "POST /api/runs/a/want-histograms HTTP/1.1\r\nHost: localhost\r\nX-Trek: 1\r\nConnection: close\r\n"
                "Content-Length: 100000\r\n\r\n");
    memset(request + n, 'x', 100000);
    request[n + 100000] = '\0';
    file = connect_to(port_of(page));
    (void)!send(file, request, strlen(request), MSG_NOSIGNAL);
    while (recv(file, answer, 100, 0) > 0)
        ;
    close(file);
    assert_false(wanted());
    assert_int_equal(get(page, "/api/runs"), 200);
    trek_page_free(&page);
}

static void refuse(const trek_page_opts *opts, trek_status status)
{
    REFUSED(trek_page_serve(opts), status, "");
}

static void test_bad_options(void **state)
{
    refuse(NULL, TREK_ERR_ARGUMENT);
    refuse(&(trek_page_opts){ .port = TREK_OFF }, TREK_ERR_ARGUMENT);
    refuse(&(trek_page_opts){ .folder = "/nowhere/at/all", .port = TREK_OFF }, TREK_ERR_IO);
    refuse(&(trek_page_opts){ .folder = in_folder("secret"), .port = TREK_OFF }, TREK_ERR_IO);
    refuse(&(trek_page_opts){ .folder = folder, .port = 65536 }, TREK_ERR_ARGUMENT);
    refuse(&(trek_page_opts){ .folder = folder, .port = -2 }, TREK_ERR_ARGUMENT);
    refuse(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .token = "short" }, TREK_ERR_ARGUMENT);
    refuse(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .token = "0123456789abcdef/../" }, TREK_ERR_ARGUMENT);
    refuse(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .address = "no such address" }, TREK_ERR_ARGUMENT);
    trek_page *page = serve(folder);
    refuse(&(trek_page_opts){ .folder = folder, .port = port_of(page) }, TREK_ERR_IO); /* it is taken */
    trek_page_free(&page);
}

static void test_environment(void **state)
{
    static const char *const wrong[] = { "x", ":80", "80:", "localhost", "::1:80", "80x", "-1", "123456", "99999" };
    unsetenv("TREK_MONITOR");
    assert_null(trek_page_from_environment(folder));
    setenv("TREK_MONITOR", "", 1);
    assert_null(trek_page_from_environment(folder));
    assert_int_equal(trek_error_status(), TREK_OK);
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        setenv("TREK_MONITOR", wrong[k], 1);
        REFUSED(trek_page_from_environment(folder), TREK_ERR_ARGUMENT, "");
    }
    trek_page_free(&(trek_page *){ serve(folder) });
    static const char *const right[][2] = { { "0", "http://127.0.0.1:" }, { "127.0.0.2:0", "http://127.0.0.2:" },
                                            { "localhost:0", "http://localhost:" } };
    for (size_t k = 0; k < sizeof right / sizeof *right; k++) {
        setenv("TREK_MONITOR", right[k][0], 1);
        trek_page *page = trek_page_from_environment(folder);
        assert_non_null(page);
        assert_int_equal(strncmp(trek_page_address(page), right[k][1], strlen(right[k][1])), 0);
        trek_page_free(&page);
    }
    unsetenv("TREK_MONITOR");
}

/* Whatever allocation fails: an error or a page, and nothing is left. */
static void test_out_of_memory(void **state)
{
    trek_page_free(&(trek_page *){ serve(folder) });
    if (test_allocator_use() != TREK_OK) {
        trek_error_clear();
        skip();
    }
    for (int at = 1; at < 12; at++) {
        test_allocator_restart(at);
        trek_page *page = trek_page_serve(&(trek_page_opts){ .folder = folder, .port = TREK_OFF, .token = "0123456789abcdef" });
        test_allocator_restart(0);
        assert_int_equal(trek_error_status(), page ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
        trek_page_free(&page);
        assert_int_equal(test_allocator_blocks(), 0);
    }
}

/* --- reports ---------------------------------------------------------------------------------------- */

static char *read_all(const char *name)
{
    FILE *file = fopen(in_folder(name), "r");
    if (!file)
        return NULL;
    size_t n = fread(answer, 1, sizeof answer - 1, file);
    answer[n] = '\0';
    fclose(file);
    return answer;
}

static void test_report(void **state)
{
    char a[128], b[128], out[128];
    snprintf(a, sizeof a, "%s/a", folder);
    snprintf(b, sizeof b, "%s/b.2/", folder);
    snprintf(out, sizeof out, "%s/report.html", folder);
    put("b.2/process-0.jsonl",
        "{\"kind\":\"log\",\"time\":2,\"level\":\"info\",\"text\":\"</script><script>alert(1)</script><!--\"}\nhalf");
    SUCCEEDS(trek_report_write(out, (const char *const[]){ a, b }, 2));
    char *html = read_all("report.html");
    assert_non_null(strstr(html, "data-run=\"a\" data-process=\"0\""));
    assert_non_null(strstr(html, "data-run=\"a\" data-process=\"1\""));
    assert_non_null(strstr(html, "data-run=\"b.2\" data-process=\"0\""));
    assert_non_null(strstr(html, "\\u003c/script>\\u003cscript>alert(1)\\u003c/script>\\u003c!--"));
    assert_null(strstr(html, "<script>alert"));
    assert_null(strstr(html, "\nhalf"));
    assert_non_null(strstr(html, "window.trek"));
    assert_non_null(strstr(html, "</html>"));
    assert_null(strstr(html, "src=\"script.js\""));
    assert_null(strstr(html, "href=\"style.css\""));
    struct stat before, after;
    stat(out, &before);
    const char *none[] = { in_folder("empty") };
    assert_int_equal(trek_report_write(out, none, 1), TREK_ERR_IO); /* what was there stays */
    trek_error_clear();
    stat(out, &after);
    assert_int_equal(before.st_ino, after.st_ino);
    FAILS(trek_report_write(out, (const char *const[]){ "/nowhere/at/all" }, 1), TREK_ERR_IO, "");
    FAILS(trek_report_write("/nowhere/report.html", (const char *const[]){ a }, 1), TREK_ERR_IO, "");
    FAILS(trek_report_write(out, (const char *const[]){ a }, 0), TREK_ERR_ARGUMENT, "");
    FAILS(trek_report_write(out, (const char *const[]){ NULL }, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_report_write(NULL, (const char *const[]){ a }, 1), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_report_write(out, NULL, 1), TREK_ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_paths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_overlong_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_metrics, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_outside, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_hosts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_want_histograms, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tokens, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_clients, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_hanging_clients, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_greedy_address, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_much, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_options, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_environment, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_out_of_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_report, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
