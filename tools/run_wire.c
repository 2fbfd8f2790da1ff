/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_wire.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/run_start.h"

enum { HEAD = 12, MOST_BYTES = 64 << 20, AT_ONCE = 256 << 10 };

static void put(char *to, uint32_t value)
{
    for (int k = 0; k < 4; k++)
        to[k] = (char)(value >> 8 * k & 255);
}

static uint32_t get(const char *from)
{
    uint32_t value = 0;
    for (int k = 0; k < 4; k++)
        value |= (uint32_t)(unsigned char)from[k] << 8 * k;
    return value;
}

void wire_begin(wire *w, int in, int out) { *w = (wire){ .open = true, .in = in, .out = out }; }

void wire_end(wire *w)
{
    if (!w->open)
        return;
    if (w->in >= 0)
        close(w->in);
    if (w->out >= 0)
        close(w->out);
    free(w->got);
    free(w->queue);
    *w = (wire){ .in = -1, .out = -1 };
}

/* Makes room for this many more bytes behind the used ones, and discards those before `begin`. */
static bool room(char **data, size_t *begin, size_t *used, size_t *size, size_t more)
{
    if (*begin > 0) {
        memmove(*data, *data + *begin, *used -= *begin);
        *begin = 0;
    }
    if (*used + more <= *size)
        return true;
    size_t larger = (*used + more) * 2;
    char *grown = realloc(*data, larger);
    if (!grown)
        return false;
    *data = grown;
    *size = larger;
    return true;
}

/* --- out ---------------------------------------------------------------------------- */

size_t wire_queued(const wire *w) { return w->queue_used - w->queue_begin; }

void wire_flush(wire *w)
{
    while (w->open && w->out >= 0 && wire_queued(w) > 0) {
        ssize_t written = write(w->out, w->queue + w->queue_begin, wire_queued(w));
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            return;
        if (written <= 0) {
            w->queue_begin = w->queue_used = 0;
            close(w->out);
            w->out = -1;
            return;
        }
        w->queue_begin += (size_t)written;
    }
}

static bool enqueue(wire *w, const void *data, size_t bytes)
{
    if (!w->open || w->out < 0 || !room(&w->queue, &w->queue_begin, &w->queue_used, &w->queue_size, bytes))
        return false;
    if (bytes > 0)
        memcpy(w->queue + w->queue_used, data, bytes);
    w->queue_used += bytes;
    return true;
}

void wire_send_bytes(wire *w, const void *data, size_t bytes)
{
    enqueue(w, data, bytes);
    wire_flush(w);
}

/* A frame is queued whole or not at all. */
void wire_send(wire *w, int type, int rank, const void *data, size_t bytes)
{
    char head[HEAD];
    put(head, (uint32_t)type);
    put(head + 4, (uint32_t)rank);
    put(head + 8, (uint32_t)bytes);
    if (bytes > MOST_BYTES || !room(&w->queue, &w->queue_begin, &w->queue_used, &w->queue_size, HEAD + bytes))
        return;
    enqueue(w, head, HEAD);
    enqueue(w, data, bytes);
    wire_flush(w);
}

void wire_send_numbers(wire *w, int type, int rank, long first, long second)
{
    char text[48];
    wire_send(w, type, rank, text, (size_t)snprintf(text, sizeof text, "%ld %ld", first, second));
}

/* --- in ------------------------------------------------------------------------------ */

bool wire_fill(wire *w)
{
    for (size_t total = 0; w->open && w->in >= 0 && total < AT_ONCE;) {
        if (!room(&w->got, &w->got_begin, &w->got_used, &w->got_size, 65536))
            return false;
        ssize_t got = read(w->in, w->got + w->got_used, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got <= 0)
            return false;
        w->got_used += (size_t)got;
        total += (size_t)got;
    }
    return w->open && w->in >= 0;
}

bool wire_next(wire *w, frame *f, bool *bad)
{
    size_t left = w->open ? w->got_used - w->got_begin : 0;
    if (left < HEAD)
        return false;
    const char *head = w->got + w->got_begin;
    *f = (frame){ .type = (int)get(head), .rank = (int)get(head + 4), .data = head + HEAD, .bytes = get(head + 8) };
    *bad = f->bytes > MOST_BYTES || f->type < WIRE_JOB || f->type > WIRE_STOPPED || f->rank < 0 || f->rank >= MOST;
    if (*bad || left < HEAD + f->bytes)
        return false;
    w->got_begin += HEAD + f->bytes;
    return true;
}

bool wire_line(wire *w, frame *f)
{
    size_t left = w->open ? w->got_used - w->got_begin : 0;
    const char *begin = left ? w->got + w->got_begin : NULL, *end = left ? memchr(begin, '\n', left) : NULL;
    if (!end)
        return false;
    *f = (frame){ .data = begin, .bytes = (size_t)(end - begin) };
    w->got_begin += f->bytes + 1;
    return true;
}

long wire_number(const frame *f, int which)
{
    char text[48], *end;
    snprintf(text, sizeof text, "%.*s", f->bytes < sizeof text ? (int)f->bytes : 0, f->data);
    long first = strtol(text, &end, 10);
    return which == 0 ? first : strtol(end, NULL, 10);
}

/* --- texts --------------------------------------------------------------------------- */

void wire_texts_add(wire_texts *t, char letter, const char *text)
{
    size_t length = strlen(text) + 2, begin = 0;
    if (t->failed || !room(&t->data, &begin, &t->used, &t->size, length)) {
        t->failed = true;
        return;
    }
    t->data[t->used] = letter;
    memcpy(t->data + t->used + 1, text, length - 1);
    t->used += length;
}

void wire_texts_number(wire_texts *t, char letter, long number)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", number);
    wire_texts_add(t, letter, text);
}

const char *wire_texts_next(const frame *f, const char *at)
{
    if (f->bytes == 0 || f->data[f->bytes - 1] != '\0')
        return NULL;
    const char *next = at ? at + strlen(at) + 1 : f->data;
    return next < f->data + f->bytes && *next ? next : NULL;
}
