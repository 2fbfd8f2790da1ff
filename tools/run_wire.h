/* SPDX-License-Identifier: Apache-2.0 */
/* What trek-run and its agents on other machines say to each other, over the standard input and output of ssh: frames, each of a
 * type, the rank that it is about, and bytes. Nothing here waits. */
#ifndef TREK_TOOLS_RUN_WIRE_H
#define TREK_TOOLS_RUN_WIRE_H

#include <stdbool.h>
#include <stddef.h>

/* What an agent says first; whatever a shell of its machine prints comes before it. The number is that of this protocol. */
#define WIRE_HELLO "trek-run agent "
#define WIRE_VERSION "1"

/* Texts are each begun by a letter and ended by a 0. */
enum wire_type {
    WIRE_JOB = 1, /* texts: f its folder, n processes of the job, l those of this machine, c cores, h address, p port, t token,
                     e a variable NAME=VALUE, a an argument, the program's name first */
    WIRE_START,   /* two numbers: which one it is on its machine, and its generation: how often it was started before */
    WIRE_SIGNAL,  /* its number, to all */
    WIRE_INPUT,   /* bytes for a process to read; none: there are no more */
    WIRE_DEATH,   /* a line for those who wait for a process of the job that has ended */
    WIRE_QUIT,    /* all have ended: what they have left behind is ended, then the agent */
    /* from an agent */
    WIRE_MACHINE, /* texts: m the machine, s SSH_CONNECTION, p a port that is free */
    WIRE_OUTPUT,  /* a byte, 2 * (its generation & 63) + (1: standard error), and what it has written; none: it is closed */
    WIRE_END,     /* its status, as of wait */
    WIRE_FAILED,  /* errno: it could not be started */
    WIRE_REFUSED, /* a text: the job cannot be run there */
    WIRE_TAKEN,   /* so many bytes of the input have been read */
    WIRE_ALIVE,   /* now and then */
};

typedef struct wire {
    bool open;
    int in, out;           /* neither waits; -1: closed */
    char *got, *queue;
    size_t got_begin, got_used, got_size, queue_begin, queue_used, queue_size;
} wire;

typedef struct frame {
    int type, rank;
    const char *data;      /* until more is read */
    size_t bytes;
} frame;

void wire_begin(wire *w, int in, int out);
void wire_end(wire *w);    /* closes both */
/* Queues and sends what can be sent now. Without memory or connection it is dropped: the other side is lost then. */
void wire_send_bytes(wire *w, const void *data, size_t bytes);
void wire_send(wire *w, int type, int rank, const void *data, size_t bytes);
void wire_send_numbers(wire *w, int type, int rank, long first, long second);
void wire_flush(wire *w);
size_t wire_queued(const wire *w);
/* Reads what is there, up to 256 KiB. false: the other side has ended. */
bool wire_fill(wire *w);
/* The next frame that is whole. bad: what is there is none. */
bool wire_next(wire *w, frame *f, bool *bad);
/* The bytes up to the end of a line, before there are frames; false: there is no whole line. */
bool wire_line(wire *w, frame *f);
/* The first, or second, number of a frame; 0: there is none. */
long wire_number(const frame *f, int which);

/* Texts, each begun by a letter and ended by a 0; failed: no memory. */
typedef struct wire_texts {
    char *data;
    size_t used, size;
    bool failed;
} wire_texts;
void wire_texts_add(wire_texts *t, char letter, const char *text);
void wire_texts_number(wire_texts *t, char letter, long number);
/* The text behind `at` (NULL: the first), with its letter; NULL: there are no more. */
const char *wire_texts_next(const frame *f, const char *at);

#endif
