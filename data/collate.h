/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of samples that have different sizes: padding, and collate functions of the user.
 *
 * The dataset of such samples is only asked for batches of one sample (n = 1 in its get). Batches of several may fail. A batch
 * is the same with any number of ranks and processes: a rank that has a part of it pads to the longest sample of the whole
 * batch. */
#ifndef TREK_DATA_COLLATE_H
#define TREK_DATA_COLLATE_H

#include "data/dataset.h"
#include "data/dataset_class.h"

TREK_BEGIN

/* Options of trek_dataset_pad. */
typedef struct trek_pad_opts {
    const char *const *fields; /* the fields that are padded; samples of other fields must have one shape; default: all */
    int n_fields;              /* number of `fields` */
    double value;              /* the value of the padding; default 0 */
    int64_t multiple_of;       /* the padded size of the first dimension is a multiple of it; default 1 */
    int64_t at_least;          /* the smallest padded size of the first dimension; default 0 */
    const double *values;      /* a value for each of `fields`, [n_fields], instead of `value`; default NULL */
    const int64_t *multiples;  /* a number for each of `fields` instead of multiple_of; 0 stands for 1; default NULL */
    const int64_t *leasts;     /* a number for each of `fields` instead of at_least; default NULL */
    /* The size of the first dimension of each sample's padded fields, [samples], copied. Further dimensions must then have one
     * size. Default NULL: a rank that has a part of a batch also fetches the other samples to measure them. */
    const int64_t *lengths;
    /* The name of an additional field: bool [n, longest], true for the elements of the sample in the first dimension of the
     * first padded field. Default NULL. */
    const char *mask;
    const char *length;        /* the name of an additional field: i64 [n], the number of those elements; default NULL */
} trek_pad_opts;

/* Returns a dataset or stream whose samples are padded: each dimension gets the longest size in the batch. It takes the
 * dataset over, also on failure. `opts` may be NULL.
 * - Errors: ARGUMENT if a field does not exist, a name occurs twice, a multiple or a least size is negative, a list is given
 *   without `fields`, or `lengths` are given for a stream.
 * - Errors when a batch is fetched: SHAPE if samples differ in dtype or in the number of dimensions, ARGUMENT if a sample is
 *   longer than `lengths` says. */
TREK_API trek_dataset *trek_dataset_pad(trek_dataset *dataset, const trek_pad_opts *opts);

/* A function of the user that makes a batch of of->n samples. samples[i][k] is field k of sample i, [1, ...], row-major in
 * host memory and borrowed. The function writes a new tensor [of->n, ...] to out[k] for each of its own fields. Otherwise it
 * is as a trek_map_fn. */
typedef trek_status (*trek_collate_fn)(const trek_fetch *of, trek_tensor *const *const *samples, trek_tensor **out, void *arg);

/* Options of trek_dataset_collate. */
typedef struct trek_collate_opts {
    const char *const *fields; /* the names of the fields that the function makes, copied; default: those of the dataset */
    int n_fields;              /* number of `fields` */
    /* True if a row depends only on its sample, so that parts of a batch can be collated separately. Default false: the function
     * always gets the whole batch of all ranks, and each rank keeps its rows. */
    bool by_rows;
    void *arg;                   /* passed to the function */
    void (*free_arg)(void *arg); /* called when the dataset is freed or cannot be made; default NULL */
} trek_collate_opts;

/* Returns a dataset whose batches `fn` makes of the samples of another dataset. It takes the other dataset over, also on
 * failure. `opts` may be NULL.
 * Errors: UNSUPPORTED for a stream. */
TREK_API trek_dataset *trek_dataset_collate(trek_dataset *dataset, trek_collate_fn fn, const trek_collate_opts *opts);

TREK_END

#endif
