/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and end of offloading. */
#include "autograd/offload.h"

#include "autograd/offload_internal.h"
#include "autograd/offload_values.h"

enum { MIN_BYTES = 1 << 20, AHEAD = 4 };

void trek_offload_begin(const trek_offload_opts *opts)
{
    struct trek_offload *o = trek_offload_of(trek_tape_get());
    if (!o)
        return;
    if (o->depth < TREK_OFFLOAD_DEEPEST)
        o->before[o->depth] = trek_grad_mode_here.offload;
    o->depth++;
    trek_offload_opts asked = opts ? *opts : (trek_offload_opts){ 0 };
    if (o->depth > TREK_OFFLOAD_DEEPEST)
        trek_fail(TREK_ERR_STATE, "offload_begin: nested more than %d deep; begin and end must pair", TREK_OFFLOAD_DEEPEST);
    else if (asked.min_bytes < TREK_OFF || asked.ahead < 0)
        trek_fail(TREK_ERR_ARGUMENT, "offload_begin: .min_bytes: %lld, .ahead: %d; must be 0 or more", (long long)asked.min_bytes,
                  asked.ahead);
    else if (asked.min_bytes == TREK_OFF)
        trek_grad_mode_here.offload = (trek_offload_opts){ 0 };
    else
        trek_grad_mode_here.offload = (trek_offload_opts){ .min_bytes = asked.min_bytes ? asked.min_bytes : MIN_BYTES,
                                                           .ahead = asked.ahead ? asked.ahead : AHEAD };
}

void trek_offload_end(void)
{
    struct trek_offload *o = trek_tape_here ? trek_tape_here->offload : NULL;
    if (!o || o->depth == 0) {
        trek_fail(TREK_ERR_STATE, "offload_end: called without trek_offload_begin before");
        return;
    }
    if (--o->depth < TREK_OFFLOAD_DEEPEST)
        trek_grad_mode_here.offload = o->before[o->depth];
}

int64_t trek_offload_sent_here(void) { return trek_tape_here && trek_tape_here->offload ? trek_tape_here->offload->sent : 0; }
