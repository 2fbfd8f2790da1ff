/* SPDX-License-Identifier: Apache-2.0 */
/* What a loader reads, where it is in its epoch, and going on from there. */
#ifndef TREK_DATA_LOADER_POSITION_H
#define TREK_DATA_LOADER_POSITION_H

#include "data/loader.h"

TREK_BEGIN

/* Returns the number of samples of an epoch, not counting samples that drop_last leaves out, or -1 for a stream. */
TREK_API int64_t trek_loader_samples(const trek_loader *loader);
/* Returns the loader's dataset, borrowed. */
TREK_API trek_dataset *trek_loader_dataset(const trek_loader *loader);
/* Writes the current epoch and how many of its batches were given, for checkpoints. Either pointer may be NULL. */
TREK_API void trek_loader_position(const trek_loader *loader, int64_t *epoch, int64_t *batch);
/* Begins an epoch as trek_loader_start does, and continues with batch number `batch`, from 0 to the number of batches. It costs
 * nothing. For a stream the samples before that batch are skipped (trek_stream_skip).
 * Errors: ARGUMENT if `batch` is beyond the end, if the end is known. */
TREK_API trek_status trek_loader_seek(trek_loader *loader, int64_t epoch, int64_t batch);
/* Returns the indices of the samples in the dataset, or their positions in the stream. The list has trek_batch_size entries. */
TREK_API const int64_t *trek_batch_indices(const trek_batch *batch);

TREK_END

#endif
