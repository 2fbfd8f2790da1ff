/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol between trek-run and its agents on other machines, over the standard input and output of ssh: frames,
 * each with a type, the rank that it is about, and bytes. Nothing here waits. */
#ifndef TREK_TOOLS_RUN_WIRE_H
#define TREK_TOOLS_RUN_WIRE_H

#include <stdbool.h>
#include <stddef.h>

/* The first thing an agent sends; a shell on its machine may print something before. The number is the protocol's
 * version. */
#define WIRE_HELLO "trek-run agent "
#define WIRE_VERSION "3"

/* Each text begins with a letter and ends with a 0. */
enum wire_type {
    WIRE_JOB =
        1, /* texts: f its folder, n processes of the job, j 1 if they come to one that is running, l those of this machine, c
            * cores, h address, p port, t token, e a variable NAME=VALUE, a an argument, with the program's name first */
    WIRE_START,  /* two numbers: its number on its machine, and its generation, which is how often it was started before */
    WIRE_SIGNAL, /* its number, for all processes */
    WIRE_INPUT,  /* bytes for a process to read; no bytes: the end of its input */
    WIRE_DEATH,  /* a line for processes that wait for the end of a process of the job */
    WIRE_QUIT,   /* all have ended: end what they have left behind, then the agent */
    /* from an agent */
    WIRE_MACHINE, /* texts: m the machine, s SSH_CONNECTION, p a free port */
    WIRE_OUTPUT,  /* a byte, 2 * (its generation & 63) + (1 for standard error), and what it has written; nothing if it is
                   * closed */
    WIRE_END,     /* its status, as from wait */
    WIRE_FAILED,  /* errno: it could not be started */
    WIRE_REFUSED, /* a text: the job cannot run there */
    WIRE_TAKEN,   /* this many bytes of the input have been read */
    WIRE_ALIVE,   /* sent from time to time */
    WIRE_STOPPED, /* how many of its processes are stopped, when that has changed */
};

typedef struct wire {
    bool open;
    int in, out;           /* both nonblocking; -1 if closed */
    char *got, *queue;
    size_t got_begin, got_used, got_size, queue_begin, queue_used, queue_size;
} wire;

typedef struct frame {
    int type, rank;
    const char *data;      /* valid until more is read */
    size_t bytes;
} frame;

void wire_begin(wire *w, int in, int out);
void wire_end(wire *w);    /* closes both */
/* Queue a frame and send what can be sent now. Without memory or connection it is dropped, and the other side counts
 * as lost. */
void wire_send_bytes(wire *w, const void *data, size_t bytes);
void wire_send(wire *w, int type, int rank, const void *data, size_t bytes);
void wire_send_numbers(wire *w, int type, int rank, long first, long second);
void wire_flush(wire *w);
size_t wire_queued(const wire *w);
/* Reads what is available, up to 256 KiB. Returns false if the other side has ended. */
bool wire_fill(wire *w);
/* Returns the next whole frame. *bad says that the data is no frame. */
bool wire_next(wire *w, frame *f, bool *bad);
/* Returns the bytes up to the end of a line, before there are frames, or false if there is no whole line. */
bool wire_line(wire *w, frame *f);
/* Returns a frame's first or second number, or 0 if there is none. */
long wire_number(const frame *f, int which);

/* Texts, each of which begins with a letter and ends with a 0; `failed` says that memory ran out. */
typedef struct wire_texts {
    char *data;
    size_t used, size;
    bool failed;
} wire_texts;
void wire_texts_add(wire_texts *t, char letter, const char *text);
void wire_texts_number(wire_texts *t, char letter, long number);
/* Returns the text after `at` (NULL: the first one) with its letter, or NULL if there are no more. */
const char *wire_texts_next(const frame *f, const char *at);

#endif
