/* SPDX-License-Identifier: Apache-2.0 */
/* Where parameters are cut into fragments. */
#include "distributed/outer/fragments.h"

void trek_fragments_cut(const int64_t *offsets, const int64_t *counts, int segments, int fragments, int64_t *bounds)
{
    int64_t total = 0, before = 0; /* elements of the segments before segment s */
    for (int k = 0; k < segments; k++)
        total += counts[k];
    const int64_t near = total / fragments / 4, first = segments > 0 ? offsets[0] : 0,
                  last = segments > 0 ? offsets[segments - 1] + counts[segments - 1] : 0;
    bounds[0] = first;
    for (int f = 1, s = 0; f < fragments; f++) {
        int64_t ideal = total / fragments * f + total % fragments * f / fragments;
        while (s < segments && before + counts[s] <= ideal)
            before += counts[s++];
        int64_t behind = s < segments ? ideal - before : 0, left = s < segments ? counts[s] - behind : 0;
        if (s == segments)
            bounds[f] = last;
        else if (behind <= near && behind <= left)
            bounds[f] = offsets[s];
        else if (left <= near)
            bounds[f] = s + 1 < segments ? offsets[s + 1] : last;
        else
            bounds[f] = offsets[s] + behind;
    }
    bounds[fragments] = last;
}
