/* SPDX-License-Identifier: Apache-2.0 */
/* How the processes of a job divide a batch: by the shares of the graph that was set up last. */
#ifndef TREK_DISTRIBUTED_PASS_DIVISION_H
#define TREK_DISTRIBUTED_PASS_DIVISION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct trek_step trek_step;

/* Makes the current shares those by which loaders divide batches among the processes. After a death they remain what they were
 * for a while (job/survival.h). */
void trek_division_publish(trek_step *s);
/* Gives this process no part of any batch, until shares are published again. */
void trek_division_publish_nothing(trek_step *s);
/* Makes loaders follow another graph's shares. If there is none, batches are not divided. */
void trek_division_withdraw(trek_step *s);
/* Returns whether no other graph trains over processes. */
bool trek_division_is_alone(const trek_step *s);
/* Writes where the part of each process begins, if `total` samples are divided now; first: [processes + 1]. */
void trek_division_of(int64_t total, int64_t *first);
/* The same for the present group and shares of this step, which loaders may not follow yet. */
void trek_division_of_job(const trek_step *s, int64_t total, int64_t *first);

#endif
