/* SPDX-License-Identifier: Apache-2.0 */
/* What every step of training in grains leaves behind (.grain of trek_trainer_opts): numbers by which two runs can be compared
 * step by step. They are the same in every process, for any ranks and whoever took which grains. With .digests they are also
 * written to a text file, with those of each grain; trek-replay reads it. docs/same-bits.md describes both. */
#ifndef TREK_DISTRIBUTED_DIGESTS_H
#define TREK_DISTRIBUTED_DIGESTS_H

#include "graph/graph.h"

TREK_BEGIN

/* How many steps a graph remembers. */
#define TREK_DIGESTS_KEPT 1024

/* The digest of a step. Halves of digests differ if what they stand for differs in one bit, except for a chance of about 2^-64.
 * They find errors, not forgers. */
typedef struct trek_step_digest {
    uint64_t parameters[2]; /* of all parameters and buffers after the step */
    uint64_t gradients[2];  /* of the sums of gradients, rounded once, before clipping */
    uint64_t samples[2];    /* of the numbers of the samples and their positions in the batch */
    double loss;            /* the mean loss, weighted as in the step, added up in the order of grains */
    double weight;          /* the sum of the weights */
} trek_step_digest;

/* Writes the digest of one of the last steps to *digest. Steps have the numbers of trek_graph_steps: the first is 1.
 * Errors: STATE if the graph is not trained in grains. ARGUMENT if the step was not made since trek_trainer_setup, or is not
 * among the last TREK_DIGESTS_KEPT ones. */
TREK_API trek_status trek_trainer_digest(const trek_graph *graph, int64_t step, trek_step_digest *digest);

/* What audits have found since trek_trainer_setup (.audit of trek_trainer_opts). */
typedef struct trek_audit_report {
    int64_t grains;         /* grains that a second rank has computed */
    int64_t differences;    /* grains whose gradients were not the same */
    int64_t step;           /* the step of the last difference; 0 without one */
    int64_t grain;          /* its grain, from 0 on */
    int ranks[2];           /* the ranks that have computed it */
    int wrong;              /* the one of them that was wrong, as a third rank has found; -1: unknown */
} trek_audit_report;

/* Writes what the audits of a graph have found to *report. It is the same in all processes.
 * Errors: STATE if the graph is not trained in grains. */
TREK_API trek_status trek_trainer_audit(const trek_graph *graph, trek_audit_report *report);

TREK_END

#endif
