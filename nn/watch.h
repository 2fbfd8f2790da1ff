/* SPDX-License-Identifier: Apache-2.0 */
/* Who is told of every module that runs on a thread: for summaries. Internal. */
#ifndef TREK_NN_WATCH_H
#define TREK_NN_WATCH_H

#include <stdatomic.h>

#include "nn/module.h"

typedef struct trek_module_watch {
    /* Before the module's forward, and after it with its first result (NULL: it failed). Nested as modules are. */
    void (*begin)(trek_module *module, trek_var *const *inputs, int n, void *arg);
    void (*end)(trek_module *module, trek_var *result, void *arg);
    void *arg;
} trek_module_watch;

extern atomic_int trek_module_watches; /* of all threads */
const trek_module_watch *trek_module_watch_here(void);
/* From here on the calling thread's modules are told to `watch` (NULL: nobody); returns who was. Layers that run as one (one
 * and its activation) run apart meanwhile. */
const trek_module_watch *trek_module_watch_set(const trek_module_watch *watch);

static inline bool trek_module_watched(void)
{
    return __builtin_expect(atomic_load_explicit(&trek_module_watches, memory_order_relaxed), 0) && trek_module_watch_here();
}

#endif
