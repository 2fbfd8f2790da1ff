/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: words on which threads spin for a while before they sleep. */
#include "distributed/control/wait.h"

#include "distributed/system/system.h"

/* Ranks often come to a meeting this far apart, and sleeping and waking costs about as much. */
#define SPIN_NS 50000

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool spin_for_change(trek_gate *gate, unsigned value)
{
    int64_t end = trek_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&gate->word, memory_order_acquire) != value)
                return true;
            pause_briefly();
        }
    } while (trek_now_ns() < end);
    return false;
}

bool trek_gate_wait(trek_gate *gate, unsigned value, bool spin, int64_t deadline_ns)
{
    if (atomic_load_explicit(&gate->word, memory_order_acquire) != value ||
        (spin && trek_word_spins() && spin_for_change(gate, value)))
        return true;
    bool changed = false;
    /* The order of this add and the load below, relative to the waker's store and its load of `sleepers`, ensures
     * that no wake is lost: all four are seq_cst. */
    atomic_fetch_add(&gate->sleepers, 1);
    while (!(changed = atomic_load(&gate->word) != value) && trek_word_wait(&gate->word, value, gate->shared, deadline_ns))
        ;
    atomic_fetch_sub(&gate->sleepers, 1);
    return changed;
}

void trek_gate_wake(trek_gate *gate)
{
    if (atomic_load(&gate->sleepers) > 0)
        trek_word_wake(&gate->word, gate->shared);
}
