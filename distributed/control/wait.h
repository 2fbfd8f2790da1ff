/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for another thread: spin briefly where cores are free, then sleep. Internal. */
#ifndef TREK_DISTRIBUTED_CONTROL_WAIT_H
#define TREK_DISTRIBUTED_CONTROL_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A word that threads wait on. Whoever changes `word` calls trek_gate_wake. */
typedef struct trek_gate {
    _Alignas(64) atomic_uint word;
    atomic_uint sleepers;
    bool shared;              /* between processes: lies in memory that they share */
} trek_gate;

/* Returns true as soon as the word differs from `value`, false when the time of
 * trek_now_ns() passes deadline_ns (0: never). */
bool trek_gate_wait(trek_gate *gate, unsigned value, bool spin, int64_t deadline_ns);
/* After a change of the word: wakes all who sleep; costs one load if nobody does. */
void trek_gate_wake(trek_gate *gate);

#endif
