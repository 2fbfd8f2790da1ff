/* SPDX-License-Identifier: Apache-2.0 */
/* Grains of a pass on the ranks of this process. What a grain gives depends on its pass and its number, and on nothing else, so
 * any process can run any grain. */
#ifndef TREK_DISTRIBUTED_POLICY_GRAIN_PASS_H
#define TREK_DISTRIBUTED_POLICY_GRAIN_PASS_H

#include "distributed/grains/grains.h"
#include "graph/batch_run.h"

typedef struct trek_grain_call {
    trek_step *s;
    const trek_step_pass *pass;
    int64_t pass_number;     /* in the step */
    const trek_batch *batch; /* with the samples that the process has read; NULL: none */
    /* Returns the number of the grain that the rank runs next, on the rank's thread; -1: there is none for it any more. *n
     * becomes the number of grains from there on that the rank runs, at most `most`. */
    int64_t (*next)(struct trek_grain_call *call, int rank, int64_t most, int64_t *n);
    /* Returns the number of the grain that `next` will probably give to the rank after the present one, if that is known; -1: it
     * is not. NULL: it never is. */
    int64_t (*coming)(struct trek_grain_call *call, int rank);
    void *source;            /* of both */
    bool captures;           /* ranks on GPUs record grains, and replay them (grain_capture.h) */
    int64_t running[TREK_MAX_RANKS], running_n[TREK_MAX_RANKS]; /* its: the first grain that each rank has been given last (-1:
                                                                  * none), and how many */
    atomic_bool failed;      /* a rank has failed: the others run no further grains */

    trek_digest **audited;   /* [local_ranks] where each rank puts the digest of the gradients of its next grain, which are then
                              * dropped; NULL: they are added to the sums */

    /* results */
    trek_pass_sum *sums;     /* [grains of the batch] */
    trek_text *recorded;     /* [grains of the batch] what training functions have recorded in each */
    int64_t rows[TREK_MAX_RANKS]; /* that each rank has run */
    uint64_t rng_draw[TREK_MAX_RANKS]; /* after that */
    trek_tensor **kept; /* [grains of the batch] buffers that grains have left on GPUs, until the ranks have run; NULL: none */
} trek_grain_call;

/* Makes room for the results. Fails with MEMORY. */
trek_status trek_grain_call_begin(trek_grain_call *call);
/* Runs what `next` gives, on all ranks. The buffers of all ranks are then those of the step's beginning again. */
trek_status trek_grain_call_run(trek_grain_call *call);
/* The same with n grains of the batch of all processes, those in `numbers`; it replaces `next` and `coming`. Fails also with
 * MEMORY. */
trek_status trek_grain_call_run_list(trek_grain_call *call, const int64_t *numbers, int64_t n);
/* Gives the graph what training functions have recorded, in the order of grains. */
trek_status trek_grain_call_give_recorded(trek_grain_call *call);
void trek_grain_call_end(trek_grain_call *call);

/* Runs grains of pass number `pass` of the current step, on the ranks of this process, whoever was given them before: those in
 * `numbers`, [n], of the batch of all processes. Their gradients are added to the sums, and their records to those of this
 * process; what training functions record is dropped, since it was recorded when the pass was made. A failure leaves the step
 * without gradients. Fails with STATE if the pass does not exist, or if its loader has ended; with UNSUPPORTED if it reads a
 * stream; with ARGUMENT if the batch has no such grain. */
trek_status trek_grains_run(trek_step *s, int64_t pass, const int64_t *numbers, int64_t n);

#endif
