/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks need from a loader: the list of a batch's samples, so that each can fetch its share. */
#ifndef TREK_DATA_LOADER_INTERNAL_H
#define TREK_DATA_LOADER_INTERNAL_H

#include "data/loader.h"
#include "data/prefetch_internal.h"
#include "nn/text.h"

struct trek_batch {
    const trek_dataset *dataset;
    bool given;              /* false if it has ended */
    int64_t n;               /* samples; may be 0 for a process or rank without a share */
    int64_t first, global;   /* position of the first one in the batch of all ranks, and the size of that batch */
    const int64_t *indices;  /* [n] borrowed; NULL if the ranks read them and nobody has listed them yet (trek_batch_indices) */
    trek_var **vars;         /* [fields]; all NULL for a window, whose batches the ranks read themselves */
    bool window;
    bool unread;             /* vars are still NULL: ranks read their own rows, and trek_batch_fill reads all */
    trek_loader *loader;     /* that has given it; NULL: a rank's reader */
    int64_t epoch, first_batch, batches; /* it consists of batches [first_batch, first_batch + batches) of the loader's epoch */
};

/* Lists the samples of one global batch without fetching them. `indices` has room for the batch size, and *n is their
 * number. Fails with ARGUMENT beyond the last batch, or with the sampler's error. */
trek_status trek_loader_indices(const trek_loader *loader, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n);


/* Append what the processes of a job must have in common for a loader that they divide, as lines of "name<TAB>value". */
trek_status trek_batch_plan_describe(const trek_batch_plan *plan, trek_text *text);
trek_status trek_loader_describe(const trek_loader *loader, trek_text *text);
/* Returns a hash of these lines, or 0 if there is nothing to compare or an error occurred. */
uint64_t trek_batch_plan_digest(const trek_batch_plan *plan);

/* A user of the loader's dataset, which is notified when the loader ends. Threads may call these functions at the
 * same time. */
typedef struct trek_loader_follower {
    void (*forget)(struct trek_loader_follower *self);
    struct trek_loader_follower *next;
} trek_loader_follower;
void trek_loader_follow(trek_loader *loader, trek_loader_follower *follower);
void trek_loader_unfollow(trek_loader *loader, trek_loader_follower *follower);

/* Return what makes the loader's epochs, borrowed. */
const trek_batch_plan *trek_loader_plan(const trek_loader *loader);
int trek_loader_depth(const trek_loader *loader);
int trek_loader_workers(const trek_loader *loader);
uint64_t trek_loader_id(const trek_loader *loader); /* unique among all loaders */
/* Begins a step whose `count` next batches the ranks read themselves: opens its scope and advances the position by at
 * most the batches that are left. `indices` has room for count batches. Returns NULL like trek_loader_next. */
trek_batch *trek_loader_next_window(trek_loader *loader, int64_t count);
/* Like trek_loader_next, for a batch whose rows the ranks read themselves. It is unread, unless someone has asked for
 * all of a batch in this epoch; batches are then fetched ahead whole. */
trek_batch *trek_loader_next_parts(trek_loader *loader);
/* Ends the current batch and returns whether the epoch has a further one, for which it reads a stream ahead. Returns false on an
 * error, too. */
bool trek_loader_more(trek_loader *loader);
/* Returns whether the epoch of a stream has ended: its last batch has been given, and it was found that no other comes. */
bool trek_loader_stream_ended(const trek_loader *loader);
/* For an epoch that begins: its batches are requested through the two functions above, and the loader itself fetches
 * nothing. */
void trek_loader_leave_to_ranks(trek_loader *loader);
/* Fetches an unread batch's fields on the calling thread. */
trek_status trek_batch_fill(const trek_batch *batch);

/* A rank's own reader of a loader's batches, on its device; only the rank's thread uses it. When the loader ends, the
 * reader ends too. */
typedef struct trek_reader trek_reader;
trek_reader *trek_reader_new(trek_loader *loader, trek_device device);
void trek_reader_free(trek_reader **reader);
bool trek_reader_is_of(const trek_reader *reader, const trek_loader *loader);
/* Continues with batches [first, end) of the epoch. Batches already read ahead are kept if they match. */
trek_status trek_reader_begin(trek_reader *reader, int64_t epoch, int64_t first, int64_t end);
/* Continues with batch `batch` and the rest of the epoch, reading the rows that the cut selects. */
trek_status trek_reader_begin_part(trek_reader *reader, int64_t epoch, int64_t batch, const trek_batch_cut *cut);
/* Returns the next batch, valid until the following call, or NULL on failure. */
trek_batch *trek_reader_next(trek_reader *reader);
/* Returns rows [first, first + rows) of any batch of an epoch, valid until the following call, or NULL on failure. They are the
 * same whoever reads them: samples are found by their index, and transforms depend on nothing else (data/transform.h). The
 * calling thread reads, unless they are expected. Fails with UNSUPPORTED for a stream. */
trek_batch *trek_reader_rows(trek_reader *reader, int64_t epoch, int64_t batch, int64_t first, int64_t rows);
/* Has the reader's threads read these rows, for which trek_reader_rows will probably be called next. What was expected before is
 * dropped; the current batch stays valid. It does nothing for streams, and if the loader has no threads. Fails with MEMORY, or
 * with STATE if a thread cannot start. */
trek_status trek_reader_expect_rows(trek_reader *reader, int64_t epoch, int64_t batch, int64_t first, int64_t rows);
/* Ends the current batch. */
void trek_reader_end_batch(trek_reader *reader);
/* Ends the current batch and reads ahead from `first` in case it comes next (up to `end`). */
void trek_reader_rest(trek_reader *reader, int64_t first, int64_t end);

/* Returns a part of a batch on a device. `vars` has room for the fields, which the caller releases. On a CPU they are
 * views. */
trek_status trek_batch_part(const trek_batch *whole, int64_t first, int64_t rows, trek_device device, trek_var **vars,
                            trek_batch *part);
void trek_batch_part_release(trek_batch *part);

#endif
