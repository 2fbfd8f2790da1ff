/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for another thread: spin for a short time if cores are free, then sleep. */
#ifndef TREK_DISTRIBUTED_CONTROL_WAIT_H
#define TREK_DISTRIBUTED_CONTROL_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A word that threads wait on. Whoever changes `word` calls trek_gate_wake. */
typedef struct trek_gate {
    _Alignas(64) atomic_uint word;
    atomic_uint sleepers;
    bool shared;              /* between processes: it lies in memory that they share */
} trek_gate;

/* Waits until the word differs from `value` and returns true. Returns false when trek_now_ns() reaches deadline_ns
 * (0: no deadline). */
bool trek_gate_wait(trek_gate *gate, unsigned value, bool spin, int64_t deadline_ns);
/* Wakes all who sleep, after a change of the word. It costs one load if nobody sleeps. */
void trek_gate_wake(trek_gate *gate);

#endif
