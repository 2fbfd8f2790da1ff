/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several processes in grains, some of which die (dying.h), and to which others come (arriving.h). What a part's text
 * adds to that: "epoch-fails", its .on_epoch fails; "frozen", it freezes a parameter; "other-seed"; "scaled", .lr_scale doubles
 * the rate of three ranks; "sharded", the optimizer's state is divided; "divided=1",
 * gradients, too. */
#ifndef TREK_TESTS_RUNNING_H
#define TREK_TESTS_RUNNING_H

#include <stdint.h>

#include "tests/distributed/grains/arriving.h"

enum { RUNNING_EPOCHS = 2 };

/* What comes of a run. */
typedef struct outcome {
    uint64_t digest;         /* of the final state */
    int builds, begun;       /* how often the model was built, and an epoch begun */
    int epochs;              /* that the program was told of */
    int steps;               /* of the first of them */
    double loss, evaluation; /* of the last one */
} outcome;

/* Is a process's part. Returns how it ends. */
int running_play(const part *me);
/* Returns what comes of one process that runs alone. */
outcome running_alone(const char *detail);
/* Runs these processes. All that live must come to what is expected, if they do not report an error. Returns how often the first
 * of them has built its model; *made gets the number of calls of process 0 in the first group (NULL: nobody asks). */
int running_expect(const char *detail, const role *roles, const outcome *expected, int *made);
/* There is a checkpoint of the end of the run in that folder, which is then removed. */
void running_expect_checkpoint(const char *folder);

#endif
