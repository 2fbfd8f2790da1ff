/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/viewer/http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tensor/late.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* --- what is used of libmicrohttpd 0.9 and 1.0 (microhttpd.h) ------------------------------------- */

struct MHD_Daemon;
struct MHD_Response;
typedef int answer_fn(void *arg, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                      const char *upload, size_t *upload_size, void **request);
enum { USE_ERROR_LOG = 1, USE_INTERNAL_THREAD = 8, USE_ITC = 1024, USE_AUTO = 65536 };
enum { OPTION_END = 0, OPTION_MEMORY = 1, OPTION_CONNECTIONS = 2, OPTION_TIMEOUT = 3, OPTION_PER_ADDRESS = 5,
       OPTION_SOCKET = 12, OPTION_LOGGER = 13 };
enum { HEADER = 1, ARGUMENT = 8, MEMORY_LASTS = 0, MEMORY_IS_COPIED = 2 };

/* Opened when the first page is served. The functions are in the order of the names. */
static struct {
    struct MHD_Daemon *(*start)(unsigned flags, uint16_t port, void *accept, void *accept_arg, answer_fn *answer, void *arg, ...);
    void (*stop)(struct MHD_Daemon *daemon);
    struct MHD_Response *(*response)(size_t size, void *body, int memory);
    int (*header)(struct MHD_Response *response, const char *name, const char *value);
    int (*queue)(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response);
    void (*destroy)(struct MHD_Response *response);
    const char *(*lookup)(struct MHD_Connection *connection, int kind, const char *key);
    struct MHD_Response *(*file_response)(uint64_t size, int file, uint64_t from);
} mhd;
static const char *const names[] = { "MHD_start_daemon", "MHD_stop_daemon", "MHD_create_response_from_buffer",
                                     "MHD_add_response_header", "MHD_queue_response", "MHD_destroy_response",
                                     "MHD_lookup_connection_value", "MHD_create_response_from_fd_at_offset64" };
_Static_assert(sizeof mhd == sizeof names, "a function for each name");
static trek_late library = { .variable = "TREK_MICROHTTPD", .package = "libmicrohttpd (libmicrohttpd12)", .names = names,
                             .functions = &mhd, .n = sizeof names / sizeof *names, .files = { "libmicrohttpd.so.12" } };

/* --- the server ----------------------------------------------------------------------------------- */

/* A browser uses six connections for a page. */
enum { CONNECTIONS = 64, PER_ADDRESS = 16, IDLE_SECONDS = 30, REQUEST_BYTES = 32 << 10, LONGEST_BODY = 4096 };

struct trek_http {
    struct MHD_Daemon *daemon;
    void (*handle)(const trek_http_request *request, trek_http_answer *answer, void *arg);
    void (*release)(trek_http_answer *answer, void *arg);
    void *arg;
    bool behind;              /* its thread yields to the threads that train */
};

const char *trek_http_header(const trek_http_request *request, const char *name)
{
    return mhd.lookup(request->connection, HEADER, name);
}

const char *trek_http_argument(const trek_http_request *request, const char *name)
{
    return mhd.lookup(request->connection, ARGUMENT, name);
}

static void add_headers(struct MHD_Response *response, const trek_http_answer *answer)
{
    char number[32];
    mhd.header(response, "Content-Type", answer->type ? answer->type : "text/plain; charset=utf-8");
    mhd.header(response, "Content-Security-Policy",
               answer->policy ? answer->policy : "default-src 'none'; frame-ancestors 'none'");
    mhd.header(response, "X-Content-Type-Options", "nosniff");
    mhd.header(response, "X-Frame-Options", "DENY");
    mhd.header(response, "Referrer-Policy", "no-referrer");
    mhd.header(response, "Cross-Origin-Resource-Policy", "same-origin");
    mhd.header(response, "Cache-Control", "no-store");
    if (answer->status == 503)
        mhd.header(response, "Retry-After", "1");
    if (answer->status == 405)
        mhd.header(response, "Allow", "GET, HEAD");
    if (answer->next >= 0) {
        snprintf(number, sizeof number, "%lld", (long long)answer->next);
        mhd.header(response, "X-Trek-Next", number);
        snprintf(number, sizeof number, "%lld", (long long)answer->total);
        mhd.header(response, "X-Trek-Size", number);
    }
}

static int reply(trek_http *http, const trek_http_request *request)
{
    trek_http_answer answer = { .status = 200, .next = -1, .total = -1 };
    http->handle(request, &answer, http->arg);
    struct MHD_Response *response = answer.file > 0
        ? mhd.file_response(answer.size, answer.file, (uint64_t)answer.from)
        : mhd.response(answer.size, (void *)(uintptr_t)answer.body, answer.lasting ? MEMORY_LASTS : MEMORY_IS_COPIED);
    int queued = 0;
    if (response) {
        add_headers(response, &answer);
        queued = mhd.queue(request->connection, (unsigned)answer.status, response);
        mhd.destroy(response); /* also closes the file once it has been sent */
    } else if (answer.file > 0) {
        close(answer.file);
    }
    http->release(&answer, http->arg);
    trek_error_clear(); /* of this thread, which is the server's: the answer reports the failure */
    return queued;
}

/* Called when the head of a request has arrived, then for each part of its body, then once more; *request counts the
 * calls. */
static int answer_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                          const char *upload, size_t *upload_size, void **request)
{
    trek_http *http = arg;
    (void)version;
    (void)upload;
    if (!http->behind) {
        http->behind = true;
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* on Linux each thread has a priority of its own; failure is
                                                                   * harmless */
    }
    if (!*request) {
        *request = (void *)(uintptr_t)1;
        return 1;
    }
    uintptr_t read = (uintptr_t)*request - 1 + *upload_size;
    if (read > LONGEST_BODY)
        return 0; /* bodies are not read here: the connection is closed */
    *request = (void *)(read + 1);
    if (*upload_size) {
        *upload_size = 0;
        return 1;
    }
    return reply(http, &(trek_http_request){ .connection = connection, .path = url, .method = method });
}

static void say_nothing(void *arg, const char *format, va_list list)
{
    (void)arg;
    (void)format;
    (void)list;
}

trek_http *trek_http_start(int socket, void (*handle)(const trek_http_request *request, trek_http_answer *answer, void *arg),
                           void (*release)(trek_http_answer *answer, void *arg), void *arg)
{
    trek_http *http = trek_late_there(&library, "page_serve") ? trek_calloc(1, sizeof *http) : NULL;
    if (http) {
        *http = (trek_http){ .handle = handle, .release = release, .arg = arg };
        http->daemon = mhd.start(USE_AUTO | USE_INTERNAL_THREAD | USE_ITC | USE_ERROR_LOG, 0, NULL, NULL, answer_request, http,
                                 OPTION_LOGGER, (void *)(uintptr_t)say_nothing, NULL, OPTION_SOCKET, socket, OPTION_CONNECTIONS,
                                 (unsigned)CONNECTIONS, OPTION_PER_ADDRESS, (unsigned)PER_ADDRESS, OPTION_TIMEOUT,
                                 (unsigned)IDLE_SECONDS, OPTION_MEMORY, (size_t)REQUEST_BYTES, OPTION_END);
        if (!http->daemon) {
            trek_fail(TREK_ERR_IO, "page_serve: the server cannot be started");
            trek_free(http);
            http = NULL;
        }
    }
    if (!http)
        close(socket);
    return http;
}

void trek_http_stop(trek_http **http)
{
    if (!http || !*http)
        return;
    mhd.stop((*http)->daemon);
    trek_free(*http);
    *http = NULL;
}

/* --- where it listens ------------------------------------------------------------------------------ */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static int bind_one(const struct addrinfo *to)
{
    int one = 1, file = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0)
        return -1;
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(file, to->ai_addr, to->ai_addrlen) == 0 && listen(file, CONNECTIONS) == 0)
        return file;
    int why = errno;
    close(file);
    errno = why;
    return -1;
}

int trek_http_listen(const char *address, int port, int *got, bool *loopback)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV }, *found = NULL;
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    int failed = getaddrinfo(address, text, &hints, &found);
    if (failed) {
        trek_fail(TREK_ERR_ARGUMENT, "page_serve: address: %.100s: %s", address, gai_strerror(failed));
        return -1;
    }
    int file = bind_one(found);
    if (file < 0)
        trek_fail(TREK_ERR_IO, "page_serve: %.100s, port %d: %s", address, port, strerror(errno));
    *loopback = is_loopback(found->ai_addr);
    freeaddrinfo(found);
    if (file >= 0 && getsockname(file, (struct sockaddr *)&own, &size) == 0)
        *got = ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&own)->sin6_port
                                               : ((struct sockaddr_in *)(void *)&own)->sin_port);
    return file;
}
