/* SPDX-License-Identifier: Apache-2.0 */
/* The part of HTTP/1.1 that serve.c needs: one request of bounded size from a socket, one answer to it, then the connection
 * ends. */
#ifndef TREK_EXAMPLES_HTTP_H
#define TREK_EXAMPLES_HTTP_H

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { HTTP_MOST_HEAD = 8 << 10, HTTP_MOST_BODY = 1 << 20, HTTP_SECONDS = 10 };

typedef struct http_request {
    char method[8], path[64];
    char *body;                /* `length` bytes and a 0 behind them, inside `bytes` */
    size_t length;
    char bytes[HTTP_MOST_HEAD + HTTP_MOST_BODY + 1];
} http_request;

static inline void http_answer(int socket, int status, const char *body)
{
    const char *reason = status == 200 ? "OK" : status == 404 ? "Not Found" : status == 405 ? "Method Not Allowed" :
                         status == 413 ? "Content Too Large" : status == 500 ? "Internal Server Error" : "Bad Request";
    char head[256];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                                        "Connection: close\r\n\r\n", status, reason, strlen(body));
    const char *parts[] = { head, body };
    size_t lengths[] = { (size_t)n, strlen(body) };
    for (int k = 0; k < 2; k++)
        for (size_t at = 0; at < lengths[k]; ) {
            ssize_t sent = send(socket, parts[k] + at, lengths[k] - at, MSG_NOSIGNAL);
            if (sent <= 0)
                return;
            at += (size_t)sent;
        }
}

/* Returns the value of Content-Length: -1 if it is missing, -2 if it is not a number. The head ends with a 0. */
static inline long http_length(const char *head)
{
    const char name[] = "\nContent-Length:";
    for (; (head = strchr(head, '\n')); head++)
        if (strncasecmp(head, name, sizeof name - 1) == 0) {
            const char *at = head + sizeof name - 1;
            while (*at == ' ' || *at == '\t')
                at++;
            char *end;
            long length = strtol(at, &end, 10);
            return isdigit((unsigned char)*at) && (*end == '\r' || *end == '\n') ? length : -2;
        }
    return -1;
}

/* Reads until `enough` bytes have arrived or, with enough 0, the end of the head. It gives up after HTTP_SECONDS. Returns the
 * number of bytes, or -1. */
static inline long http_fill(int socket, http_request *r, size_t have, size_t enough, size_t most, time_t until)
{
    while (enough ? have < enough : !strstr(r->bytes, "\r\n\r\n")) {
        if (have >= most || time(NULL) > until)
            return -1;
        ssize_t got = recv(socket, r->bytes + have, most - have, 0);
        if (got <= 0)
            return -1;
        have += (size_t)got;
        r->bytes[have] = '\0';
        if (!enough && memchr(r->bytes, '\0', have))
            return -1;
    }
    return (long)have;
}

/* Returns 200 if a request has arrived, otherwise the status of the answer, or 0 if the client has gone. */
static inline int http_read(int socket, http_request *r)
{
    struct timeval patience = { .tv_sec = HTTP_SECONDS };
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    time_t until = time(NULL) + HTTP_SECONDS;
    r->bytes[0] = '\0';
    long have = http_fill(socket, r, 0, 0, HTTP_MOST_HEAD, until);
    if (have <= 0)
        return have < 0 && r->bytes[0] ? 400 : 0;
    char *end = strstr(r->bytes, "\r\n\r\n");
    size_t head = (size_t)(end - r->bytes) + 4;
    char after = r->bytes[head];
    r->bytes[head] = '\0';
    long length = http_length(r->bytes);
    bool good = sscanf(r->bytes, "%7s %63s HTTP/1.", r->method, r->path) == 2 && length != -2 && length >= -1;
    r->bytes[head] = after;
    if (!good)
        return 400;
    if (length > HTTP_MOST_BODY)
        return 413;
    r->body = r->bytes + head;
    r->length = length > 0 ? (size_t)length : 0;
    if (http_fill(socket, r, (size_t)have, head + r->length, head + r->length, until) < 0 && (size_t)have < head + r->length)
        return 400;
    r->body[r->length] = '\0';
    return 200;
}

/* Closes the connection. It first reads what the client still sends, up to a bound; otherwise the client might see a reset
 * instead of the answer. */
static inline void http_end(int socket)
{
    char away[4096];
    struct timeval patience = { .tv_sec = 1 };
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    shutdown(socket, SHUT_WR);
    for (int k = 0; k < 1024 && recv(socket, away, sizeof away, 0) > 0; k++)
        ;
    close(socket);
}

#endif
