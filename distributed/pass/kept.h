/* SPDX-License-Identifier: Apache-2.0 */
/* What the modules of a rank's forward keep for backward, and how long they take: an observer of the thread's modules, while a
 * pass runs that measures (dry_pass.h). */
#ifndef TREK_DISTRIBUTED_PASS_KEPT_H
#define TREK_DISTRIBUTED_PASS_KEPT_H

#include "distributed/balance/recomputing.h"
#include "distributed/pass/moving.h"
#include "nn/module.h"
#include "nn/text.h"
#include "nn/watch.h"
#include "tensor/memory_account.h"

/* A run of a module. */
typedef struct trek_kept_run {
    trek_module *module;
    int parent;              /* the run around it; -1: none */
    int begin, end;          /* points */
    int64_t begin_ns, ns;
    int64_t result;          /* bytes of its result */
    bool may;                /* it can be recomputed */
} trek_kept_run;

/* A segment: a module, or n children of a sequential from number `first` on. */
typedef struct trek_kept_segment {
    trek_module *module;
    int first, n;            /* n 0: the module itself */
    bool moved;              /* if it is chosen, it is moved; otherwise recomputed */
} trek_kept_segment;

typedef struct trek_kept {
    trek_module_watch watch;
    trek_device device;
    const trek_memory_account *account; /* NULL: of a GPU */
    int n_runs, cap_runs, n_points, cap_points, n_segments, cap_segments, cap_line;
    trek_kept_run *runs;
    int64_t *held;           /* [n_points] */
    trek_kept_segment *segments;
    trek_segment *line;      /* [n_segments] */
    int64_t host;            /* bytes of host memory for what is moved */
    int here;                /* the innermost run that has not ended; -1: none */
    trek_status status;
} trek_kept;

/* Makes an empty record. It must not move while it observes, and is cleared with trek_kept_clear. */
void trek_kept_begin(trek_kept *kept, trek_device device, const trek_memory_account *account);
void trek_kept_clear(trek_kept *kept);
/* Finds the segments among the runs: modules that ran once and have one result, and neighbouring children of a sequential. Each
 * may be recomputed, and (host > 0) also moved to so many bytes of host memory, which takes as long as was measured. Fails with
 * MEMORY. */
trek_status trek_kept_find_segments(trek_kept *kept, const trek_moving *moving, int64_t host);
static inline trek_forward_line trek_kept_line(const trek_kept *kept)
{
    return (trek_forward_line){ .n_points = kept->n_points, .held = kept->held, .n = kept->n_segments, .segments = kept->line,
                                .host = kept->host };
}
/* Has the segments that are marked recomputed or moved from now on, in the tree of `root`, and no others. Fails with MEMORY. */
trek_status trek_kept_apply(const trek_kept *kept, trek_module *root, const bool *chosen);
/* Adds the names of the marked segments to the text, either of those that are moved or of those that are recomputed, such as
 * "blocks.0, body.3-5". Returns how many there are. */
int trek_kept_describe(const trek_kept *kept, trek_module *root, const bool *chosen, bool moved, trek_text *text);

#endif
