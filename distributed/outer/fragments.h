/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters in parts that travel one after the other (streaming DiLoCo, arXiv:2501.18512). Internal. */
#ifndef TREK_DISTRIBUTED_OUTER_FRAGMENTS_H
#define TREK_DISTRIBUTED_OUTER_FRAGMENTS_H

#include <stdint.h>

/* Cuts segments of a flat array (parameters: offsets[k], counts[k], ascending, not overlapping) into `fragments` parts of nearly
 * equal numbers of elements: part f is [bounds[f], bounds[f + 1]) of the array; bounds has fragments + 1 places. Together they
 * are the array from the first segment's beginning to the last one's end; what lies between segments belongs to the part
 * before. A cut goes where two segments meet, if that is at most a quarter of a part away from where it would be ideal, else to
 * the ideal place, in the middle of a segment: so each part has half to one and a half times its share. With more fragments than
 * elements some are empty. */
void trek_fragments_cut(const int64_t *offsets, const int64_t *counts, int segments, int fragments, int64_t *bounds);

#endif
