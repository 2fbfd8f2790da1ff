/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of replay/ share. */
#ifndef TREK_DISTRIBUTED_REPLAY_REPLAY_INTERNAL_H
#define TREK_DISTRIBUTED_REPLAY_REPLAY_INTERNAL_H

#include "distributed/replay/replay.h"
#include "nn/text.h"
#include "tensor/trace.h"

/* The lines of a recorded step. */
typedef struct replay_recorded {
    char *text;              /* the file, with a NUL behind each step */
    struct replay_place {
        int64_t step;
        const char *lines;
    } *steps;                /* in the order of the file */
    int n_steps, room;
    int ranks;
    int64_t grain;           /* samples of a grain */
} replay_recorded;

/* A grain of the step that is under way, and its samples. */
typedef struct replay_grain {
    int64_t pass, number, n;
    int64_t *samples;        /* [n] indices in the dataset */
} replay_grain;

/* The first thing of the step that is not a number. */
typedef struct replay_found {
    bool found;
    char what[160];          /* "the field x", "the result of log in module head (backward)" */
    int64_t pass, grain;     /* of the step */
    int64_t row;             /* of the grain; -1: unknown */
} replay_found;

struct trek_replay {
    int64_t step, grain;     /* that are asked for; grain -1: all */
    replay_recorded recorded;
    char *report;            /* the file of the report; NULL: none */
    int64_t first;           /* the first step that was made; 0: none yet */
    replay_grain *grains;    /* of the step that is under way */
    int n_grains, room;
    replay_found found;
    bool watching;
    trek_trace_sink sink;    /* then */
    const trek_trace_sink *before; /* what listened before */
};

/* recorded.c */
trek_status trek_replay_read(replay_recorded *recorded, const char *path);
void trek_replay_forget(replay_recorded *recorded);
/* Returns the lines of a step, the last of which is its own; NULL: it was not recorded. */
const char *trek_replay_find(const replay_recorded *recorded, int64_t step);
/* Copies the word after " NAME " in a line. Returns false if it is not there or too long. */
bool trek_replay_word(const char *line, const char *name, char *word, size_t size);

/* compare.c: finds the first difference, of all grains or only that one. Returns false if there is none; *grain: whose it is,
 * or -1. */
bool trek_replay_differ(const char *recorded, const char *made, int64_t only, trek_text *what, int64_t *pass, int64_t *grain);

/* watch.c: watches the operators of the calling thread until the end, and looks at a grain's samples. */
void trek_replay_watch(trek_replay *replay, const struct trek_batch *grain);
void trek_replay_watch_end(trek_replay *replay);

#endif
