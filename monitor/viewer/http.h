/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP through libmicrohttpd, opened at run time: one thread that answers whole requests. */
#ifndef TREK_MONITOR_HTTP_H
#define TREK_MONITOR_HTTP_H

#include "tensor/status.h"

typedef struct trek_http trek_http;
struct MHD_Connection;

typedef struct trek_http_request {
    struct MHD_Connection *connection;
    const char *path, *method;
} trek_http_request;
/* Return the value of a header or of a query argument, or NULL if it is missing. */
const char *trek_http_header(const trek_http_request *request, const char *name);
const char *trek_http_argument(const trek_http_request *request, const char *name);

typedef struct trek_http_answer {
    int status;               /* such as 200 */
    const char *type;         /* the content type */
    const void *body;
    size_t size;
    bool lasting;             /* body outlives the server; otherwise it is copied */
    int file;                 /* if > 0: `size` bytes of it from `from` on are the body; closed afterwards */
    int64_t from;
    int64_t next, total;      /* if >= 0: headers X-Trek-Next and X-Trek-Size */
    const char *policy;       /* Content-Security-Policy; NULL: nothing may be loaded */
} trek_http_answer;

/* Answers requests to the listening socket, which becomes the server's, by calling `handle` on the server's thread.
 * `release` is called for what handle has made once the answer has been sent off. Returns NULL with UNSUPPORTED or
 * IO. */
trek_http *trek_http_start(int socket, void (*handle)(const trek_http_request *request, trek_http_answer *answer, void *arg),
                           void (*release)(trek_http_answer *answer, void *arg), void *arg);
void trek_http_stop(trek_http **http);

/* Returns a listening socket; *got is its actual port, and *loopback tells whether only this machine can reach it.
 * Returns -1 with ARGUMENT or IO. */
int trek_http_listen(const char *address, int port, int *got, bool *loopback);

#endif
