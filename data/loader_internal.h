/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks need of a loader: the list of a batch's samples, so that each can fetch its share. */
#ifndef TREK_DATA_LOADER_INTERNAL_H
#define TREK_DATA_LOADER_INTERNAL_H

#include "data/loader.h"

/* The samples of one global batch without fetching them: indices has room for
 * the batch size; *n is their number. ARGUMENT beyond the last batch; what the sampler reports. */
trek_status trek_loader_indices(const trek_loader *loader, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n);

#endif
