/* SPDX-License-Identifier: Apache-2.0 */
/* The digests of steps: how they are made, where they stay, and the file of them. */
#ifndef TREK_DISTRIBUTED_GRAINS_DIGESTS_H
#define TREK_DISTRIBUTED_GRAINS_DIGESTS_H

#include "distributed/digests.h"
#include "distributed/grains/digest.h"
#include "distributed/grains/grains.h"
#include "nn/text.h"

typedef struct trek_digests {
    int64_t steps[TREK_DIGESTS_KEPT]; /* the step of each place of the ring; 0: none */
    trek_step_digest of[TREK_DIGESTS_KEPT];
    char *path;              /* of the file; NULL: none */
    int file;                /* -1: not open (it is opened by the process that first has to write) */
    bool of_grains;          /* each grain's gradients are digested: for the file, or for a replay */
    struct trek_replay *replay; /* NULL: an earlier run's steps are not made again */
    bool failed;             /* it cannot be written any more, which was logged */

    /* of the step that is under way */
    trek_digest samples;
    trek_digest *gradients, *parameters; /* [local_ranks] what each rank has added up */
    trek_digest values;      /* of parameters and buffers */
    trek_digest shared;      /* of divided gradients: those of all ranks of the job */
    trek_tensor **on_device; /* [local_ranks] both of a rank on a GPU, where they are added up; NULL on the host */
    double loss, weight;
    trek_text grains;        /* lines of the file */
} trek_digests;

/* Allocates what digests need. `path` is copied; NULL: there is no file. */
trek_status trek_digests_make(trek_step *s, const char *path);
void trek_digests_free(trek_step *s);
/* Forgets the step that is under way. */
void trek_digests_reset(trek_step *s);
/* Notes which samples a grain has: for its record. */
trek_digest trek_digests_samples(const struct trek_batch *grain);
/* Returns the digest of the gradients of a rank's arena, which are those of one grain. On a GPU it waits for them, and may set an
 * error. */
trek_digest trek_digests_gradients(const trek_arena *arena);
/* Adds what is known of a grain. Called in the order of grains. */
void trek_digests_add(trek_digests *digests, const trek_grain_record *record);
/* Adds gradients that a rank has just read from the sums: elements [begin, end) of a part of the arena. On a GPU it may set an
 * error. */
void trek_digests_read(trek_step *s, int rank, int part, int64_t begin, int64_t end);
/* Brings what a rank on a GPU has digested to the host, on which trek_digests_share adds it up. Called by the rank. */
trek_status trek_digests_fetch(trek_step *s, int rank);
/* If gradients are divided: adds up what the processes have read of them, when they all have. It is a collective. */
trek_status trek_digests_share(trek_step *s);
/* Gives the digest of a step that is still known. */
bool trek_digests_find(const trek_step *s, int64_t step, trek_step_digest *digest);
/* Returns the number of ranks of the run whose steps are made again; 0: none are, or it is unknown. */
int trek_grains_replayed_ranks(const trek_step *s);
/* Digests parameters and buffers as they are after the step. If parameters are divided it is a collective, which can be repeated;
 * and if they are kept twice it is called when all have updated theirs, before trek_digests_leave. */
trek_status trek_digests_values(trek_step *s);
/* The step is made: digests its values, and keeps the digest. Its number is that of the graph's steps + 1. */
trek_status trek_digests_leave(trek_step *s);

#endif
