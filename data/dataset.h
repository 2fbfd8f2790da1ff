/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: numbered samples, fetched as batches of named tensors.
 *
 * A dataset is a struct that begins with trek_dataset and a constant class, the
 * way modules are made. It is counted: who makes it owns one reference; whoever
 * takes a dataset over (a loader, a run, a subset) takes that one, also on
 * failure; trek_dataset_retain makes another, so that two subsets can share one. */
#ifndef TREK_DATA_DATASET_H
#define TREK_DATA_DATASET_H

#include "autograd/var.h"

TREK_BEGIN

typedef struct trek_dataset trek_dataset;

/* What is asked of a dataset: n samples, and what random transforms of them are keyed by. A random number of a sample is a
 * function of seed, epoch and the sample's index alone, at the level where it is drawn (a transform of a subset sees the
 * subset's numbers): so samples are the same from any number of threads, ranks and processes, and after any resume. */
typedef struct trek_fetch {
    const int64_t *indices;    /* [n] */
    int64_t n;
    int64_t epoch;             /* of the loader, >= 0; 0 outside of one */
    uint64_t seed;             /* of the loader; 0 outside of one */
    /* All samples of the batch of all ranks that these are of, [n_batch]. NULL and 0: these are all, or whoever asks does
     * not know. A loader tells them to those whose class needs_batch, and to what holds such a one. */
    const int64_t *batch;
    int64_t n_batch;
    int64_t batch_first;       /* place of indices[0] in batch */
} trek_fetch;

typedef struct trek_dataset_class {
    const char *name;          /* "mnist" */
    size_t size;               /* of the whole struct */
    int64_t (*length)(const trek_dataset *self); /* samples; constant for the dataset's life */
    /* Fetches samples (n >= 1; indices are checked to lie in [0, length)): writes
     * to out[k] a new tensor [n, ...] in host memory for each field k. Called from
     * a loader's thread, and from several threads at once: it changes nothing in
     * self, or locks. Its variables belong to a scope that ends with the call. On
     * failure it reports through trek_fail and returns the status; what it had
     * already put into out is released. */
    trek_status (*get)(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out);
    void (*free)(trek_dataset *self); /* what the struct holds; may be NULL; must accept a half-filled (zeroed) struct */
    int n_fields;              /* names of the fields; 0 where each object has its own (trek_dataset_set_fields) */
    const char *const *fields;
    /* A stream has these in place of length and get (data/stream.h). */
    const struct trek_stream_class *stream;
    bool needs_batch;          /* trek_fetch.batch is to be told: what a sample looks like follows from the others of its batch */
} trek_dataset_class;

/* The head of every dataset. Fields are for reading. */
struct trek_dataset {
    const trek_dataset_class *klass;
    int n_fields;
    const char *const *fields;
    struct trek_dataset_hidden *hidden;
};

/* Zeroed and begun, with one reference. NULL and ARGUMENT (a class without length or get that is no stream), MEMORY. */
TREK_API trek_dataset *trek_dataset_new(const trek_dataset_class *klass);
/* Names of this object's fields (copied). Before first use only. ARGUMENT for
 * an empty list, an empty name or one that occurs twice; MEMORY. */
TREK_API trek_status trek_dataset_set_fields(trek_dataset *dataset, const char *const *names, int n);
TREK_API trek_dataset *trek_dataset_retain(trek_dataset *dataset); /* returns dataset; NULL is fine */
/* Gives one reference back and sets *dataset to NULL. Accepts NULL. STATE, and nothing given back,
 * if all references are those of loaders and subsets. */
TREK_API void trek_dataset_free(trek_dataset **dataset);

TREK_API int64_t trek_dataset_length(const trek_dataset *dataset); /* -1 and an error for NULL; -1 for a stream */
TREK_API int trek_dataset_field_count(const trek_dataset *dataset); /* fields of a sample */
TREK_API const char *trek_dataset_field_name(const trek_dataset *dataset, int field); /* NULL if there is no such field */
/* The place of a field; -1 and ARGUMENT, listing the names, if there is none. */
TREK_API int trek_dataset_field(const trek_dataset *dataset, const char *name);

/* Fetches samples by index, of epoch 0 with seed 0: out has room for one tensor per
 * field, each a new reference. ARGUMENT unless n >= 1, and for an index out of range;
 * UNSUPPORTED for a stream; whatever the dataset reports. On failure out holds NULLs. */
TREK_API trek_status trek_dataset_get(trek_dataset *dataset, const int64_t *indices, int64_t n, trek_tensor **out);
/* The same of any epoch, with any seed. A dataset made of others fetches from them so. Also ARGUMENT for a negative epoch, and
 * for indices of the batch out of range. */
TREK_API trek_status trek_dataset_fetch(trek_dataset *dataset, const trek_fetch *fetch, trek_tensor **out);
/* One field of one sample as a batch of one, [1, ...] on `device`; owned by the
 * present scope. For predicting: trek_forward(model, trek_dataset_sample(set, 7, "image", device)). */
TREK_API trek_var *trek_dataset_sample(trek_dataset *dataset, int64_t index, const char *field, trek_device device);

/* -- datasets that come with the library ------------------------------------
 * All return NULL on failure: IO (a file is missing or cannot be read: path and
 * reason), FORMAT (it does not hold what it should), MEMORY, ARGUMENT. */

typedef enum trek_data_split { TREK_TRAIN, TREK_TEST } trek_data_split;

/* MNIST or a set of its format: "image" f32 [n, 1, 28, 28] in [0, 1] (the byte
 * over 255), "label" i64 [n]. Reads train-images-idx3-ubyte and
 * train-labels-idx1-ubyte (TREK_TRAIN), or t10k-... (TREK_TEST), plain or .gz. */
TREK_API trek_dataset *trek_dataset_mnist(const char *folder, trek_data_split split);
/* The same from any pair of IDX files, plain or gzip'd, of unsigned bytes: images
 * [n, h, w] (one channel) or [n, c, h, w], labels [n]. */
TREK_API trek_dataset *trek_dataset_idx(const char *images, const char *labels);
/* One IDX file as a tensor in host memory: u8 (unsigned bytes), i32 (8, 16 and 32
 * bits signed), f32, f64. Also FORMAT for more than 8 dimensions. */
TREK_API trek_tensor *trek_idx_read(const char *path);

/* Handwriting-like digits, drawn, distorted and noisy, for machines without
 * data: fields and shapes as MNIST's. Sample i is a function of (seed, i)
 * alone, so a longer set begins with the shorter one; take another seed, or
 * another subset, for testing. */
TREK_API trek_dataset *trek_dataset_digits(int64_t n, uint64_t seed);

/* Rows of tensors in memory: field k is names[k], sample i is row i of
 * tensors[k] (which is retained; the caller keeps its reference). All have the
 * same size of dimension 0: SHAPE otherwise. Tensors of devices are copied to the host. */
TREK_API trek_dataset *trek_dataset_tensors(const char *const *names, trek_tensor *const *tensors, int n_fields);

/* Samples first .. first + count - 1 of another dataset, numbered from 0; takes
 * the dataset over. ARGUMENT if they are not all there. */
TREK_API trek_dataset *trek_dataset_subset(trek_dataset *dataset, int64_t first, int64_t count);

typedef struct trek_text_windows_opts {
    int64_t stride;            /* characters from one window's start to the next's; default: window (no overlap) */
} trek_text_windows_opts;

/* Character-level language modelling: windows of a text file. "input" i64
 * [n, window], "target" i64 [n, window]: the same one character further. A
 * character is a byte; its number is its place among the distinct bytes of the
 * file, sorted. FORMAT if the file is shorter than window + 1. opts may be NULL. */
TREK_API trek_dataset *trek_dataset_text_windows(const char *path, int64_t window, const trek_text_windows_opts *opts);
/* The distinct characters of a text_windows dataset (or a subset, an index list, a cache of one) in
 * order of their numbers, `*size` of them; lives as long as the dataset. NULL and ARGUMENT for another dataset. */
TREK_API const unsigned char *trek_text_vocabulary(const trek_dataset *dataset, int *size);
/* Characters to numbers: ids[count]. ARGUMENT for a character that the file does not have. */
TREK_API trek_status trek_text_encode(const trek_dataset *dataset, const char *text, int64_t count, int64_t *ids);

/* CIFAR-10's binary version: "image" f32 [n, 3, 32, 32] in [0, 1], "label" i64
 * [n]. Reads data_batch_1.bin .. data_batch_5.bin (TREK_TRAIN) or test_batch.bin. */
TREK_API trek_dataset *trek_dataset_cifar10(const char *folder, trek_data_split split);

/* CIFAR-100's: "image" as above, "label" i64 [n] in 0 .. 99, "coarse" i64 [n] in 0 .. 19. Reads train.bin or test.bin. */
TREK_API trek_dataset *trek_dataset_cifar100(const char *folder, trek_data_split split);

/* Windows over files of 16-bit little-endian token numbers (raw, or with the 1024-byte header that begins with the number
 * 20240520), or of 32-bit ones (header 20240801): "input" and "target" i64 [n, window] as in text_windows, without overlap and
 * never across files. Files stay on disk and are read as needed. FORMAT if no file holds a window. */
TREK_API trek_dataset *trek_dataset_token_shards(const char *const *paths, int n_paths, int64_t window);

typedef struct trek_token_shards_opts {
    int bits; /* of tokens in files without a header: 16 or 32; default 16 */
} trek_token_shards_opts;

/* The same. opts may be NULL. */
TREK_API trek_dataset *trek_dataset_token_shards_with(const char *const *paths, int n_paths, int64_t window,
                                                      const trek_token_shards_opts *opts);

TREK_END

#endif
