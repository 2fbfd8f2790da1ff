/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks need of a loader: the list of a batch's samples, so that each can fetch its share. */
#ifndef TREK_DATA_LOADER_INTERNAL_H
#define TREK_DATA_LOADER_INTERNAL_H

#include "data/loader.h"
#include "data/prefetch_internal.h"
#include "nn/text.h"

struct trek_batch {
    const trek_dataset *dataset;
    bool given;              /* false: it has ended */
    int64_t n;               /* samples, 0 is possible: a process, or rank, without a part */
    int64_t first, global;   /* place of the first one in the batch of all ranks, and the samples of that */
    const int64_t *indices;  /* [n] borrowed; NULL: of samples that ranks read, not listed yet (trek_batch_indices) */
    trek_var **vars;         /* [fields]; all NULL for a window, whose batches the ranks read themselves */
    bool window;
    bool unread;             /* vars are NULL so far: ranks read their own rows, trek_batch_fill reads all */
    trek_loader *loader;     /* of an unread one, or a window */
    int64_t epoch, first_batch, batches; /* of these: batches [first_batch, first_batch + batches) of the epoch */
};

/* The samples of one global batch without fetching them: indices has room for
 * the batch size; *n is their number. ARGUMENT beyond the last batch; what the sampler reports. */
trek_status trek_loader_indices(const trek_loader *loader, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n);


/* What the processes of a job have to have alike in a loader that they divide: lines of "name<TAB>value". */
trek_status trek_batch_plan_describe(const trek_batch_plan *plan, trek_text *text);
trek_status trek_loader_describe(const trek_loader *loader, trek_text *text);
/* A number that stands for them; 0: nothing is to be compared, or an error. */
uint64_t trek_batch_plan_digest(const trek_batch_plan *plan);

/* Who uses the loader's dataset until it ends: it is told then. Threads may call these at the same time. */
typedef struct trek_loader_follower {
    void (*forget)(struct trek_loader_follower *self);
    struct trek_loader_follower *next;
} trek_loader_follower;
void trek_loader_follow(trek_loader *loader, trek_loader_follower *follower);
void trek_loader_unfollow(trek_loader *loader, trek_loader_follower *follower);

/* What makes the loader's epochs; borrowed. */
const trek_batch_plan *trek_loader_plan(const trek_loader *loader);
int trek_loader_depth(const trek_loader *loader);
int trek_loader_workers(const trek_loader *loader);
uint64_t trek_loader_id(const trek_loader *loader); /* no two ever have the same */
/* A step whose `count` next batches the ranks read themselves: its scope is opened, the position moves on by what is
 * left of them at most. indices: room for count batches. NULL as from trek_loader_next. */
trek_batch *trek_loader_next_window(trek_loader *loader, int64_t count);
/* trek_loader_next of a batch whose rows the ranks read themselves: unread, unless somebody has asked for all of one in this
 * epoch (then batches are fetched ahead, whole). */
trek_batch *trek_loader_next_parts(trek_loader *loader);
/* Of an epoch that begins: its batches are asked for by the two functions above, the loader itself fetches nothing. */
void trek_loader_leave_to_ranks(trek_loader *loader);
/* Fetches an unread batch's fields, on the calling thread. */
trek_status trek_batch_fill(const trek_batch *batch);

/* A rank's own reader of a loader's batches, on its device; used by the rank's thread. The loader's end ends it, too. */
typedef struct trek_reader trek_reader;
trek_reader *trek_reader_new(trek_loader *loader, trek_device device);
void trek_reader_free(trek_reader **reader);
bool trek_reader_is_of(const trek_reader *reader, const trek_loader *loader);
/* Batches [first, end) of the epoch come next. What was read ahead is kept if it is that. */
trek_status trek_reader_begin(trek_reader *reader, int64_t epoch, int64_t first, int64_t end);
/* Batch `batch` comes next, and the others of the epoch after it, of which rows are wanted as the cut says. */
trek_status trek_reader_begin_part(trek_reader *reader, int64_t epoch, int64_t batch, const trek_batch_cut *cut);
/* The next one, valid until the call after it; NULL and an error. */
trek_batch *trek_reader_next(trek_reader *reader);
/* Ends the present batch. */
void trek_reader_end_batch(trek_reader *reader);
/* Ends the present batch, and reads on from `first` in case that comes next (at most `end`). */
void trek_reader_rest(trek_reader *reader, int64_t first, int64_t end);

/* A part of a batch on a device: vars has room for the fields, which are the caller's to release. CPU: views. */
trek_status trek_batch_part(const trek_batch *whole, int64_t first, int64_t rows, trek_device device, trek_var **vars,
                            trek_batch *part);
void trek_batch_part_release(trek_batch *part);

#endif
