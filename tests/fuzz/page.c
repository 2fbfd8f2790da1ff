/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the live page: lines of a method, a path, the number to go on from, and headers "Host", "Origin", "X-Trek". The
 * page asks this program's own server, so that no socket is in between; beside the runs lies what it may never show. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "monitor/viewer/http.h"
#include "monitor/page.h"
#include "tests/fuzz/fuzz.h"

enum { METHOD, PATH, FROM, HOST, ORIGIN, TREK, LINES };
static char lines[LINES][512];
static char folder[] = "/tmp/trek-fuzz-XXXXXX";

struct trek_http {
    void (*handle)(const trek_http_request *request, trek_http_answer *answer, void *arg);
    void (*release)(trek_http_answer *answer, void *arg);
    void *arg;
} server;

const char *trek_http_header(const trek_http_request *request, const char *name)
{
    (void)request;
    int k = strcmp(name, "Host") == 0 ? HOST : strcmp(name, "Origin") == 0 ? ORIGIN : strcmp(name, "X-Trek") == 0 ? TREK : LINES;
    return k < LINES && lines[k][0] ? lines[k] : NULL;
}

const char *trek_http_argument(const trek_http_request *request, const char *name)
{
    (void)request;
    return strcmp(name, "from") == 0 && lines[FROM][0] ? lines[FROM] : NULL;
}

int trek_http_listen(const char *address, int port, int *got, bool *loopback)
{
    (void)address;
    *got = port;
    *loopback = true;
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

trek_http *trek_http_start(int socket, void (*handle)(const trek_http_request *request, trek_http_answer *answer, void *arg),
                           void (*release)(trek_http_answer *answer, void *arg), void *arg)
{
    close(socket);
    server = (struct trek_http){ handle, release, arg };
    return &server;
}

void trek_http_stop(trek_http **http) { *http = NULL; }

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    fuzz_expect(file && fputs(text, file) >= 0 && fclose(file) == 0, "a file");
}

static void end(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0)
        perror(command);
}

static trek_page *make_page(void)
{
    char path[128];
    fuzz_expect(mkdtemp(folder) != NULL && atexit(end) == 0, "a folder");
    snprintf(path, sizeof path, "%s/runs", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/runs/a", folder);
    mkdir(path, 0700);
    put("hidden", "{\"kind\":\"log\",\"text\":\"never shown\"}\n");
    put("runs/a/process-0.jsonl", "{\"kind\":\"scalars\",\"time\":1,\"step\":1,\"values\":{\"loss\":1}}\n{\"kind\":\"half");
    snprintf(path, sizeof path, "%s/runs/a/process-1.jsonl", folder);
    fuzz_expect(symlink("../../hidden", path) == 0, "a link");
    snprintf(path, sizeof path, "%s/runs", folder);
    return trek_page_serve(&(trek_page_opts){ .folder = path, .port = TREK_OFF });
}

static void check(const trek_http_answer *answer)
{
    char text[4096] = "";
    fuzz_expect(answer->status == 200 || (answer->status >= 400 && answer->status <= 503), "an answer");
    if (answer->file > 0) {
        fuzz_expect(answer->from >= 0 && answer->size < sizeof text, "a part of a file");
        fuzz_expect(pread(answer->file, text, answer->size, answer->from) == (ssize_t)answer->size, "its bytes");
        close(answer->file);
    }
    fuzz_expect(!strstr(text, "never shown"), "what is hidden stays so");
    fuzz_expect(answer->file > 0 || answer->size == 0 || (answer->body && !memmem(answer->body, answer->size, "never shown", 11)),
                "what is hidden stays so");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static trek_page *page;
    if (!page)
        fuzz_expect((page = make_page()) != NULL, "a page");
    memset(lines, 0, sizeof lines);
    strcpy(lines[HOST], "localhost");
    for (int k = 0; k < LINES && size > 0; k++) {
        const uint8_t *stop = memchr(data, '\n', size);
        size_t length = stop ? (size_t)(stop - data) : size, taken = length < sizeof lines[k] ? length : sizeof lines[k] - 1;
        memset(lines[k], 0, sizeof lines[k]);
        memcpy(lines[k], data, taken); /* up to a 0, as a server gives it */
        data += length + (stop != NULL);
        size -= length + (stop != NULL);
    }
    trek_http_request request = { .path = lines[PATH], .method = lines[METHOD] };
    trek_http_answer answer = { .status = 200, .next = -1, .total = -1 };
    server.handle(&request, &answer, server.arg);
    check(&answer);
    server.release(&answer, server.arg);
    trek_error_clear();
    return 0;
}
