/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts parameters into parts that are sent one after the other (streaming DiLoCo, arXiv:2501.18512). */
#ifndef TREK_DISTRIBUTED_OUTER_FRAGMENTS_H
#define TREK_DISTRIBUTED_OUTER_FRAGMENTS_H

#include <stdint.h>

/* Cuts segments of a flat array (parameters: offsets[k], counts[k], ascending, not overlapping) into `fragments`
 * parts with nearly equal numbers of elements. Part f is [bounds[f], bounds[f + 1]) of the array; bounds has
 * fragments + 1 elements. Together the parts cover the array from the beginning of the first segment to the end of
 * the last; gaps between segments belong to the part before them. A cut is made where two segments meet if that is at
 * most a quarter of a part away from the ideal cut, otherwise at the ideal cut, in the middle of a segment. So each
 * part has half to one and a half times its share. With more fragments than elements some are empty. */
void trek_fragments_cut(const int64_t *offsets, const int64_t *counts, int segments, int fragments, int64_t *bounds);

#endif
