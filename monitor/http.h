/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP by libmicrohttpd, opened at run time: one thread that answers whole requests. Internal. */
#ifndef TREK_MONITOR_HTTP_H
#define TREK_MONITOR_HTTP_H

#include "tensor/status.h"

typedef struct trek_http trek_http;
struct MHD_Connection;

typedef struct trek_http_request {
    struct MHD_Connection *connection;
    const char *path, *method;
} trek_http_request;
/* The value of a header, or of the query's argument; NULL: not there. */
const char *trek_http_header(const trek_http_request *request, const char *name);
const char *trek_http_argument(const trek_http_request *request, const char *name);

typedef struct trek_http_answer {
    int status;               /* 200 */
    const char *type;         /* of its content */
    const void *body;
    size_t size;
    bool lasting;             /* body outlives the server; else it is copied */
    int file;                 /* > 0: `size` bytes of it from `from` on are the body; closed after it */
    int64_t from;
    int64_t next, total;      /* >= 0: headers X-Trek-Next and X-Trek-Size */
    const char *policy;       /* Content-Security-Policy; NULL: nothing may be loaded */
} trek_http_answer;

/* Answers requests that come to the listening socket (which becomes the server's) by `handle`, on its thread. `release` is
 * called for what handle has made once the answer is on its way. NULL: UNSUPPORTED, IO. */
trek_http *trek_http_start(int socket, void (*handle)(const trek_http_request *request, trek_http_answer *answer, void *arg),
                           void (*release)(trek_http_answer *answer, void *arg), void *arg);
void trek_http_stop(trek_http **http);

/* A listening socket; *port: that it has. *loopback: whether only this machine reaches it. -1: ARGUMENT, IO. */
int trek_http_listen(const char *address, int port, int *got, bool *loopback);

#endif
