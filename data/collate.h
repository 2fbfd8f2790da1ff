/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of samples that differ in size: padding, and functions of one's own.
 *
 * Such a dataset gives batches of one sample alone (its get is asked for n = 1 here; batches of several may fail). On any number
 * of ranks and processes a batch is what it is in one: who has a part of it pads to the longest of all. */
#ifndef TREK_DATA_COLLATE_H
#define TREK_DATA_COLLATE_H

#include "data/dataset.h"

TREK_BEGIN

typedef struct trek_pad_opts {
    const char *const *fields; /* which are padded; default: all. Samples of others have to be of one shape */
    int n_fields;
    double value;              /* what stands behind a sample's own; default 0 */
    int64_t multiple_of;       /* padded samples' first dimension is a multiple of it; default 1 */
    int64_t at_least;          /* and at least so long */
    const double *values;      /* [n_fields] one for each of fields, in place of value; NULL: value for all */
    const int64_t *multiples, *leasts; /* the same in place of multiple_of, at_least; 0: 1, and 0 */
    /* [samples] the size of the first dimension of each sample's padded fields; copied. Default: a part of a batch fetches the
     * others of its batch too, to measure them. With it, further dimensions have to be of one size. */
    const int64_t *lengths;
    const char *mask;          /* a further field of this name: bool [n, longest], true for a sample's own (of the first padded
                                  field's first dimension) */
    const char *length;        /* a further field of this name: i64 [n], how many those are */
} trek_pad_opts;

/* Samples of a dataset, or a stream, made equal: each dimension becomes the longest of the batch. opts may be NULL. Takes the
 * dataset over, also on failure. ARGUMENT: no such field, a name that occurs twice, a multiple or a least size < 0, lists
 * without fields, lengths of a stream. When batches are fetched: SHAPE for samples of different dtypes or numbers of dimensions,
 * ARGUMENT for one that is longer than `lengths` says. */
TREK_API trek_dataset *trek_dataset_pad(trek_dataset *dataset, const trek_pad_opts *opts);

/* A batch of samples: samples[i][k] is field k of sample i, [1, ...], row-major in host memory, borrowed; of->n of them. Writes
 * to out[k] a new tensor [of->n, ...] for each of its own fields. Otherwise as a trek_map_fn. */
typedef trek_status (*trek_collate_fn)(const trek_fetch *of, trek_tensor *const *const *samples, trek_tensor **out, void *arg);

typedef struct trek_collate_opts {
    const char *const *fields; /* of what fn makes; copied; default: the dataset's */
    int n_fields;
    bool by_rows; /* a row follows from its sample alone: parts of a batch are collated by themselves. Default: fn always gets
                     the whole batch of all ranks, of which each keeps its rows */
    void *arg;
    void (*free_arg)(void *arg); /* called when the dataset ends, also if it could not be made; NULL: not */
} trek_collate_opts;

/* What fn makes of batches of a dataset. opts may be NULL. Takes the dataset over, also on failure. UNSUPPORTED for a stream. */
TREK_API trek_dataset *trek_dataset_collate(trek_dataset *dataset, trek_collate_fn fn, const trek_collate_opts *opts);

TREK_END

#endif
