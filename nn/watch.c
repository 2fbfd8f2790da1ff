/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/watch.h"

atomic_int trek_module_watches;
static _Thread_local const trek_module_watch *watch_here;

const trek_module_watch *trek_module_watch_here(void) { return watch_here; }

const trek_module_watch *trek_module_watch_set(const trek_module_watch *watch)
{
    const trek_module_watch *before = watch_here;
    atomic_fetch_add(&trek_module_watches, (watch != NULL) - (before != NULL));
    watch_here = watch;
    return before;
}
