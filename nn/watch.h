/* SPDX-License-Identifier: Apache-2.0 */
/* Observers of every module that runs on a thread, used for summaries and for measuring. */
#ifndef TREK_NN_WATCH_H
#define TREK_NN_WATCH_H

#include <stdatomic.h>

#include "nn/module.h"

typedef struct trek_module_watch {
    /* Called before the module's forward, and after it with its first result (NULL if it failed). Calls nest as
     * modules do. */
    void (*begin)(trek_module *module, trek_var *const *inputs, int n, void *arg);
    void (*end)(trek_module *module, trek_var *result, void *arg);
    void *arg;
    bool fuses; /* layers run fused as without an observer: of two, the first is reported, with the result of both */
} trek_module_watch;

extern atomic_int trek_module_watches; /* of all threads */
const trek_module_watch *trek_module_watch_here(void);
/* From now on the calling thread's modules report to `watch`, or to none if it is NULL. Returns the previous
 * observer. Meanwhile, layers that would run fused (a layer and its activation) run separately, unless it says `fuses`. */
const trek_module_watch *trek_module_watch_set(const trek_module_watch *watch);

static inline bool trek_module_watched(void)
{
    return __builtin_expect(atomic_load_explicit(&trek_module_watches, memory_order_relaxed), 0) && trek_module_watch_here();
}

/* Returns whether layers have to run one by one for the observer. */
static inline bool trek_module_unfuses(void) { return trek_module_watched() && !trek_module_watch_here()->fuses; }

#endif
