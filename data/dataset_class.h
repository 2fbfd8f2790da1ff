/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets of your own, and the samples of any dataset. docs/own-datasets.md has an example. */
#ifndef TREK_DATA_DATASET_CLASS_H
#define TREK_DATA_DATASET_CLASS_H

#include "data/dataset.h"

TREK_BEGIN

/* A request for n samples, with the values that determine their random transforms.
 * A random number of a sample depends only on the seed, the epoch and the sample's index. The index is that of the dataset that
 * draws the number: a transform of a subset uses the subset's indices. So samples are the same with any number of threads, ranks
 * and processes, and after resuming. */
typedef struct trek_fetch {
    const int64_t *indices;    /* the indices of the samples, [n] */
    int64_t n;                 /* the number of samples */
    int64_t epoch;             /* the loader's epoch, >= 0; without a loader 0 */
    uint64_t seed;             /* the loader's seed; without a loader 0 */
    /* The indices of all samples of the batch of all ranks, [n_batch]. It is NULL if the requested samples are the whole
     * batch, or if the batch is not known. A loader sets it for datasets whose class needs_batch and for datasets that contain
     * one. */
    const int64_t *batch;
    int64_t n_batch;           /* the number of samples in `batch`; 0 if it is NULL */
    int64_t batch_first;       /* the position of indices[0] in `batch` */
} trek_fetch;

/* The class of a dataset: its functions and properties. */
typedef struct trek_dataset_class {
    const char *name;          /* the name of the class, such as "mnist" */
    size_t size;               /* the size of the whole struct in bytes */
    /* Returns the number of samples, which must never change. */
    int64_t (*length)(const trek_dataset *self);
    /* Fetches n >= 1 samples, whose indices are valid, and writes a new tensor [n, ...] in host memory to out[k] for each
     * field k. Several threads call it at once. Its variables belong to a scope that ends with the call. On failure it calls
     * trek_fail and returns the status; tensors that are already in `out` are then released. */
    trek_status (*get)(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out);
    void (*free)(trek_dataset *self); /* frees the contents of the struct, which may be incomplete (zeros); may be NULL */
    int n_fields;              /* number of fields; 0 if each object has its own (trek_dataset_set_fields) */
    const char *const *fields; /* the names of the fields */
    /* The functions of a stream, which has them instead of length and get (data/stream.h). */
    const struct trek_stream_class *stream;
    bool needs_batch;          /* trek_fetch.batch must be set, because a sample depends on the other samples of its batch */
} trek_dataset_class;

/* The first member of every dataset. The fields may be read but not written. */
struct trek_dataset {
    const trek_dataset_class *klass;     /* the class */
    int n_fields;                        /* number of fields */
    const char *const *fields;           /* the names of the fields */
    struct trek_dataset_hidden *hidden;  /* internal */
};

/* Returns a new dataset of a class with one reference. The part of the struct after trek_dataset is filled with zeros.
 * Errors: ARGUMENT if the class is not a stream and lacks length or get. MEMORY. NULL is returned. */
TREK_API trek_dataset *trek_dataset_new(const trek_dataset_class *klass);
/* Sets the names of this object's fields, which are copied. It must be called before the dataset is first used.
 * Errors: ARGUMENT if the list is empty, or if a name is empty or occurs twice. MEMORY. */
TREK_API trek_status trek_dataset_set_fields(trek_dataset *dataset, const char *const *names, int n);
/* Returns the number of fields of a sample. */
TREK_API int trek_dataset_field_count(const trek_dataset *dataset);
/* Returns the name of a field, or NULL if `field` is out of range. */
TREK_API const char *trek_dataset_field_name(const trek_dataset *dataset, int field);
/* Returns the index of the field with this name.
 * Errors: ARGUMENT, with a list of the names, if the dataset has no such field; -1 is returned. */
TREK_API int trek_dataset_field(const trek_dataset *dataset, const char *name);
/* Fetches n samples by index, for epoch 0 and seed 0, and writes one tensor for each field to `out`. Each tensor is a new
 * reference, which the caller releases. On failure `out` holds NULLs.
 * Errors: ARGUMENT unless n >= 1 and all indices are valid. UNSUPPORTED for a stream. Errors of the dataset. */
TREK_API trek_status trek_dataset_get(trek_dataset *dataset, const int64_t *indices, int64_t n, trek_tensor **out);
/* Fetches samples as trek_dataset_get does, for any epoch and seed. A dataset that is made of others fetches from them with
 * this function.
 * Errors: as trek_dataset_get. ARGUMENT also if the epoch is negative or an index of the batch is not valid. */
TREK_API trek_status trek_dataset_fetch(trek_dataset *dataset, const trek_fetch *fetch, trek_tensor **out);
/* Returns one field of one sample as a batch of one, [1, ...], on `device`. The result belongs to the current scope. It serves
 * for predictions: trek_forward(model, trek_dataset_sample(set, 7, "image", device)). */
TREK_API trek_var *trek_dataset_sample(trek_dataset *dataset, int64_t index, const char *field, trek_device device);

TREK_END

#endif
