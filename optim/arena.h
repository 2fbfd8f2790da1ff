/* SPDX-License-Identifier: Apache-2.0 */
/* Flat arenas: the parameters of one dtype in one contiguous buffer, their gradients in another. Parameters and
 * gradients become views of these buffers; the variables that users hold stay the same objects.
 *
 * 16-bit parameters have f32 gradients and f32 master copies. Updates, which rounding would lose, are made to the
 * master, and the parameter is rewritten from it in the same pass. When a parameter was written from outside, which
 * its version shows (writing through a raw pointer does not change it), the master takes over the new values.
 *
 * Slots begin at multiples of TREK_ARENA_SLOT elements, with zero padding, in reverse order of registration, which is
 * the order in which backward completes gradients.
 *
 * Sharers are ranks with equal arenas. Each of them keeps masters and optimizer state only for certain stretches
 * (cuts), in buffers that hold these one after the other, and updates no others (ZeRO's first stage, Rajbhandari et
 * al. 2020). Parameters and gradients are whole on every rank, unless they lie in pages. Cuts lie wherever they are even, or in
 * proportion to the sharers' weights. For classes that update whole parameters they lie between parameters, so that each
 * parameter has an owner.
 *
 * Each element may be kept by two sharers (`twice`), so that one of them may be lost. Both make the same updates. Then cuts are
 * made as if the arena lay there twice, one after the other, and each sharer had one stretch of this line (McNaughton's rule for
 * machines). No stretch is longer than the arena, so the two places of an element belong to different sharers. */
#ifndef TREK_OPTIM_ARENA_H
#define TREK_OPTIM_ARENA_H

#include "nn/module.h"
#include "tensor/backend.h"

struct trek_pages;

typedef struct trek_arena_segment {
    trek_var *param;         /* retained */
    char *name;
    int64_t offset, count;   /* elements, in the arena of its dtype */
    int part;                /* the arena's part (one for each dtype) */
    int group;               /* of the optimizer */
    int index;               /* its position in the list of parameters */
    int64_t steps;           /* the number of its updates (for a bias correction per parameter) */
    uint32_t version;        /* the version of the parameter's data that the master copy corresponds to */
    bool used;               /* some rank's backward has reached it since the last step */
    bool ahead;              /* the master copy may have digits that the parameter lacks, although `steps` was reset */
} trek_arena_segment;

/* All parameters of one dtype. The tensors are 1-D with `count` elements, and are owned references. */
typedef struct trek_arena_part {
    trek_dtype dtype;        /* of the parameters */
    trek_dtype wide;         /* of master, gradients and optimizer state: F32 for 16-bit parameters, otherwise dtype */
    int64_t count;           /* elements, including padding */
    trek_tensor *params, *grads;
    struct trek_pages *pages; /* of grads, whose memory comes and goes (tensor/pages.h); NULL: it stays */
    struct trek_pages *param_pages; /* of params, if these are divided, too; otherwise NULL */
    trek_tensor *master;     /* what is updated: params itself, or the f32 copy of 16-bit ones (of sharers: its cuts) */
} trek_arena_part;

/* Elements [begin, end) of a part that one rank keeps and updates. `place` is their position in the buffers that hold
 * only its own elements. */
typedef struct trek_arena_cut {
    int part;
    int64_t begin, end, place;
} trek_arena_cut;

/* Returns whether the part has master copies of its parameters. */
static inline bool trek_arena_part_is_low(const trek_arena_part *part) { return part->wide != part->dtype; }

/* In elements: 512 bytes or more. Parameters and sharers' cuts begin at multiples of it, so that no block of elements
 * with a common scale of optimizer state (tensor/state_code.h) belongs to two of them. */
#define TREK_ARENA_SLOT 256
/* Returns the earliest beginning of the next slot after elements up to `end`. */
static inline int64_t trek_arena_slot_end(int64_t end) { return (end + TREK_ARENA_SLOT - 1) / TREK_ARENA_SLOT * TREK_ARENA_SLOT; }

/* Where a parameter's slot begins. */
typedef struct trek_arena_slot {
    int index, part;         /* its position in the list of parameters; its part */
    int64_t offset;          /* elements */
} trek_arena_slot;
/* Computes the layout that every arena of these parameters has: `slots`, [parameters] in arena order, and the parts'
 * dtypes and counts. `parts` has TREK_DTYPE_COUNT zeroed elements. Returns the number of parts. */
int trek_arena_lay_out(const trek_params *params, trek_arena_part *parts, trek_arena_slot *slots);

typedef struct trek_arena {
    trek_device device;
    int n_parts, n_segments;
    bool sharing;            /* the data belongs to another arena */
    bool paged_params;       /* parameters lie in pages */
    int sharers;             /* parts are a multiple of this many stretches of `unit` elements; 1: no cuts */
    int64_t unit;            /* TREK_ARENA_SLOT; with paged gradients at least a page of parameters */
    int sharer;              /* this rank's number among them */
    bool twice;              /* each element is kept by two sharers, if two of them have weights above 0 */
    double *weights;         /* [sharers] their parts are in proportion to these; NULL: they are equal */
    int *owner;              /* [n_segments] the sharer that has all of each segment; NULL if cuts lie anywhere. With `twice` the
                              * second keepers follow, [n_segments], -1 for none */
    int n_cuts;
    trek_arena_cut *cuts;    /* sorted by part and position, adjacent ones joined; NULL if everything is this rank's */
    int64_t owned[TREK_DTYPE_COUNT]; /* elements of each part that belong to this rank */
    const trek_backend *backend; /* of device */
    trek_arena_part parts[TREK_DTYPE_COUNT];
    trek_arena_segment *segments; /* in arena order */
} trek_arena;

/* Moves params into one arena. Values are kept, and so are existing gradients. Fails with STATE if a parameter is in
 * another arena already. After a failure nothing has moved. */
trek_arena *trek_arena_new(const trek_params *params);
/* The same with gradients in memory that `zeros` makes, for example where they are reduced (NULL: any memory). With
 * sharers > 1, trek_arena_divide has to follow; until then there are no masters. */
typedef trek_tensor *(*trek_arena_zeros_fn)(void *arg, trek_shape shape, trek_dtype dtype, trek_device device);
trek_arena *trek_arena_new_in(const trek_params *params, int sharers, trek_arena_zeros_fn zeros, void *arg);
/* The same for sharers > 1, with gradients whose memory is taken when they are first written, and given back by
 * trek_arena_give_back and when they are zeroed. That of the sharer's own gradients is always taken. page: the size of the
 * largest page (trek_pages_size) of all sharers' devices. params_too: parameters lie in pages, too, all of which have memory; the
 * caller gives back what it can get elsewhere. twice: see trek_arena_new_twice. */
trek_arena *trek_arena_new_paged(const trek_params *params, int sharers, size_t page, bool params_too, bool twice);
/* The same as trek_arena_new_in, for an arena of which each element is kept by two sharers. Its layout does not depend on their
 * number, which may change (trek_arena_set_sharers). All have equal weights. */
trek_arena *trek_arena_new_twice(const trek_params *params, int sharers, trek_arena_zeros_fn zeros, void *arg);
/* Sets the weights of an arena's sharers, which are copied: 0 or more each, not all 0. A sharer of weight 0 has nothing. NULL:
 * their parts are equal. With `twice` they are rounded, and none is more than the sum of the others, since a sharer can keep
 * everything once at most. Called before cuts are made. Fails with MEMORY. */
trek_status trek_arena_weigh(trek_arena *arena, const double *weights);
/* Sets the number of sharers of an arena with `twice`, 2 or more, and their weights, before its cuts are made again. The old
 * weights are stored in *before, and belong to the caller. Fails with MEMORY; nothing has changed then. */
trek_status trek_arena_set_sharers(trek_arena *arena, int sharers, const double *weights, double **before);
/* Who keeps the elements from one on, up to `end`: of[0] gives them to the others. of[1] is -1 if they are kept once. */
typedef struct trek_arena_keepers {
    int of[2];               /* both -1: it is padding, of which nobody keeps anything */
    int64_t end;
} trek_arena_keepers;
/* Returns who keeps an element of an arena with `twice`, by weights or by owners. */
trek_arena_keepers trek_arena_keepers_at(const trek_arena *arena, int part, int64_t at);
/* Returns the owners, and then the second keepers, of all segments of an arena with `twice`: a new array [2 n_segments]. Returns
 * NULL with MEMORY on failure. */
int *trek_arena_keepers_of_segments(const trek_arena *arena);
/* Returns where a sharer's stretch of a part begins if sharers have weights; for sharer number `sharers`, where the last one's
 * ends. It is a multiple of the unit. */
int64_t trek_arena_begin_of(const trek_arena *arena, int part, int sharer);
/* What belongs to one sharer of an arena, while it is being made or set aside. Everything is owned. */
typedef struct trek_arena_division {
    int *owner;
    int n_cuts;
    trek_arena_cut *cuts;
    int64_t owned[TREK_DTYPE_COUNT];
    trek_tensor *masters[TREK_DTYPE_COUNT]; /* of 16-bit parameters; otherwise NULL */
    bool bare;               /* set before it is made: they are zeros */
} trek_arena_division;
/* Returns an owner for each segment. Each sharer owns consecutive segments, and none has much more than another, in proportion
 * to their weights, of the sum of elements / all elements and work / all work (NULL, or with weights: only elements count).
 * Returns NULL with MEMORY on failure. With `twice` these are trek_arena_keepers_of_segments. */
int *trek_arena_owners(const trek_arena *arena, const double *work);
/* Makes a division from n cuts, sorted by part and position. `place` and the owned counts are filled in, and empty
 * cuts are left out. `masters` are in the arena's layout, on the host; where they are NULL, masters are made from the
 * parameters. Fails with MEMORY. Call trek_arena_division_clear in any case. */
trek_status trek_arena_division_make(const trek_arena *arena, const trek_arena_cut *cuts, int n, trek_tensor *const *masters,
                                     trek_arena_division *division);
/* Exchanges the arena's division with the given one, before an optimizer is made. */
void trek_arena_divide(trek_arena *arena, trek_arena_division *division);
void trek_arena_division_clear(trek_arena_division *division);
/* Returns whether all of a segment belongs to this rank. */
static inline bool trek_arena_has_whole(const trek_arena *arena, int segment)
{
    if (!arena->owner)
        return !arena->cuts;
    return arena->owner[segment] == arena->sharer ||
        (arena->twice && arena->owner[arena->n_segments + segment] == arena->sharer);
}
/* Returns an element's position in the buffers of this rank's own elements, or -1 if it belongs to another rank. */
int64_t trek_arena_place(const trek_arena *arena, int part, int64_t at);
/* Finds this rank's next piece among elements [*at, end) of a part, and moves *at behind it. Returns false if there
 * is none. */
bool trek_arena_next_own(const trek_arena *arena, int part, int64_t *at, int64_t end, trek_arena_cut *piece);
/* Returns elements [begin, begin + count) of a flat tensor as a new view, or NULL with MEMORY. */
trek_tensor *trek_arena_stretch(trek_tensor *flat, int64_t begin, int64_t count);
/* Fills the gradients of all elements that are not this rank's with zeros. */
trek_status trek_arena_zero_others(trek_arena *arena);
/* Gives memory to paged gradients that are this rank's own, for as long as its cuts are what they are. Others keep theirs if
 * there are any gradients. */
trek_status trek_arena_hold_own(trek_arena *arena);
/* Gives back the memory of paged gradients [begin, end) of a part, except this rank's own. They are zeros then. */
void trek_arena_give_back(trek_arena *arena, int part, int64_t begin, int64_t end);
/* Makes the same layout for a replica's parameters, whose data becomes `owner`'s (one copy in shared memory);
 * gradients are the replica's own. Fails with ARGUMENT unless names, shapes and dtypes match. */
trek_arena *trek_arena_new_sharing(const trek_params *params, trek_arena *owner);
/* Parameters stay in the buffers, which live as long as they are referenced, and become ordinary variables again:
 * existing gradients stay, zeroed ones are dropped. */
void trek_arena_free(trek_arena **arena);
/* Fills the gradients with zeros on the caller's pool and marks them as absent. Cannot fail on the CPU. */
void trek_arena_zero_grads(trek_arena *arena);
/* Fills one segment's gradient with zeros. */
void trek_arena_zero_segment(trek_arena *arena, int segment);
/* Marks the gradients as absent, for callers that have zeroed the memory themselves. */
void trek_arena_forget_grads(trek_arena *arena);
/* Sets every segment's `used`: this rank's backward has given it a gradient, and it is not frozen. */
void trek_arena_mark_used(trek_arena *arena);
/* Counts a write to the data of each parameter whose segment in `updated` is used, so that saved tensors and packed
 * weights notice. `updated` has the same layout and may be the arena itself. A replica that shares its owner's memory
 * calls this after the owner's optimizer has committed. */
void trek_arena_bump(trek_arena *arena, const trek_arena *updated);
/* Brings masters up to date with 16-bit parameters that were written from outside. A master that rounds to the
 * parameter is kept. Fails with MEMORY; the next call does what is left. */
trek_status trek_arena_refresh_masters(trek_arena *arena);
/* Notes, after an update, that the masters correspond to the parameters as they are. */
void trek_arena_note_masters(trek_arena *arena);
/* Computes the sum of squares of all gradients in f64. *finite becomes false if one is inf or NaN. */
void trek_arena_sum_squares(const trek_arena *arena, double *sum, bool *finite);
/* Returns how many elements of a part have parameters, up to the end of the last one's slot. The rest is padding, which depends
 * on the number of sharers. */
int64_t trek_arena_filled(const trek_arena *arena, int part);
/* Returns the segment of a parameter, or -1. */
int trek_arena_find(const trek_arena *arena, const trek_var *param);

#endif
