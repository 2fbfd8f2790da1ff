/* SPDX-License-Identifier: Apache-2.0 */
/* Flat arenas: the parameters of one dtype in one contiguous buffer, their
 * gradients in another. Parameters and gradients become views of them; the
 * variables that users hold stay the same objects. Internal.
 *
 * 16-bit parameters have f32 gradients and f32 master copies: updates, which
 * would be lost in rounding, are made to the master, and the parameter is rewritten
 * from it in the same pass. A parameter that was written from outside (its version
 * tells; writing through a raw pointer does not) gives its new values to the master.
 *
 * Slots begin at multiples of TREK_ARENA_SLOT elements, padding is zero, in reverse order of registration
 * (the order in which backward completes gradients).
 *
 * Sharers: ranks with equal arenas, each of which keeps masters and optimizer state of some stretches
 * (cuts) only, in buffers that hold these one after the other, and updates no others (ZeRO's first stage,
 * Rajbhandari et al. 2020). Parameters and gradients are whole on every rank. Cuts lie wherever they are even; or, for
 * classes that update whole parameters, between parameters: then each has an owner. */
#ifndef TREK_OPTIM_ARENA_H
#define TREK_OPTIM_ARENA_H

#include "nn/module.h"
#include "tensor/backend.h"

typedef struct trek_arena_segment {
    trek_var *param;         /* retained */
    char *name;
    int64_t offset, count;   /* elements, in the arena of its dtype */
    int part;                /* which of the arena's parts (dtypes) */
    int group;               /* of the optimizer */
    int index;               /* its place in the list of parameters */
    int64_t steps;           /* updates it has had (bias correction per parameter) */
    uint32_t version;        /* of the parameter's data that the master copy goes with */
    bool used;               /* some rank's backward reached it since the last step */
    bool ahead;              /* the master copy may have digits that the parameter lacks, though `steps` began anew */
} trek_arena_segment;

/* All parameters of one dtype. Tensors are 1-D, `count` elements, owned references. */
typedef struct trek_arena_part {
    trek_dtype dtype;        /* of the parameters */
    trek_dtype wide;         /* of master, gradients and optimizer state: F32 for 16-bit parameters, else dtype */
    int64_t count;           /* elements, padding included */
    trek_tensor *params, *grads;
    trek_tensor *master;     /* what is updated: params itself, or the f32 copy of 16-bit ones (of sharers: its cuts) */
} trek_arena_part;

/* Elements [begin, end) of a part, which are one rank's to keep and update; `place`: where they begin in the buffers that hold
 * only its own. */
typedef struct trek_arena_cut {
    int part;
    int64_t begin, end, place;
} trek_arena_cut;

/* Whether the part has master copies of its parameters. */
static inline bool trek_arena_part_is_low(const trek_arena_part *part) { return part->wide != part->dtype; }

/* Elements: 512 bytes or more. Parameters and sharers' cuts begin at multiples, so that no block of elements that share a scale
 * of optimizer state (tensor/state_code.h) is of two. */
#define TREK_ARENA_SLOT 256
/* Where the next slot may begin at the earliest, after elements up to `end`. */
static inline int64_t trek_arena_slot_end(int64_t end) { return (end + TREK_ARENA_SLOT - 1) / TREK_ARENA_SLOT * TREK_ARENA_SLOT; }

/* Where a parameter's slot begins. */
typedef struct trek_arena_slot {
    int index, part;         /* its place in the list of parameters; which of the parts */
    int64_t offset;          /* elements */
} trek_arena_slot;
/* The layout that every arena of these parameters has: slots, [parameters] in arena order, and the parts' dtypes and counts;
 * parts are zeroed, TREK_DTYPE_COUNT of them. Returns how many there are. */
int trek_arena_lay_out(const trek_params *params, trek_arena_part *parts, trek_arena_slot *slots);

typedef struct trek_arena {
    trek_device device;
    int n_parts, n_segments;
    bool sharing;            /* the data is another arena's */
    int sharers;             /* parts are a multiple of as many stretches of TREK_ARENA_SLOT elements; 1: no cuts */
    int sharer;              /* which of them this rank is */
    int *owner;              /* [n_segments] the sharer that has all of each; NULL: cuts lie anywhere */
    int n_cuts;
    trek_arena_cut *cuts;    /* by part and place in it, those side by side joined; NULL: all is this rank's */
    int64_t owned[TREK_DTYPE_COUNT]; /* elements of each part that are this rank's */
    const trek_backend *backend; /* of device */
    trek_arena_part parts[TREK_DTYPE_COUNT];
    trek_arena_segment *segments; /* in arena order */
} trek_arena;

/* Moves params into one arena: values kept, a gradient that is there is kept.
 * A parameter that lives in another arena already: STATE. On failure nothing has moved. */
trek_arena *trek_arena_new(const trek_params *params);
/* The same with gradients in memory that `zeros` makes: where they are reduced (NULL: any). sharers > 1: trek_arena_divide
 * follows, before which there are no masters. */
typedef trek_tensor *(*trek_arena_zeros_fn)(void *arg, trek_shape shape, trek_dtype dtype, trek_device device);
trek_arena *trek_arena_new_in(const trek_params *params, int sharers, trek_arena_zeros_fn zeros, void *arg);
/* What of an arena is one sharer's, while it is made, or put aside. All owned. */
typedef struct trek_arena_division {
    int *owner;
    int n_cuts;
    trek_arena_cut *cuts;
    int64_t owned[TREK_DTYPE_COUNT];
    trek_tensor *masters[TREK_DTYPE_COUNT]; /* of 16-bit parameters; else NULL */
} trek_arena_division;
/* An owner for each segment: consecutive ones have the same, and none has much more than another of the sum of elements / all
 * elements and work / all work (NULL: none counts but elements). MEMORY: NULL. */
int *trek_arena_owners(const trek_arena *arena, const double *work);
/* Of cuts by part and place in it, n of them, `place` and owners are filled in; empty ones are left out. masters: in the
 * arena's layout, on the host, where they are to be taken from (entries NULL, or all of it: the parameters). MEMORY; in any case
 * trek_arena_division_clear. */
trek_status trek_arena_division_make(const trek_arena *arena, const trek_arena_cut *cuts, int n, trek_tensor *const *masters,
                                     trek_arena_division *division);
/* The arena's becomes the division's, and the other way round: before an optimizer is made. */
void trek_arena_divide(trek_arena *arena, trek_arena_division *division);
void trek_arena_division_clear(trek_arena_division *division);
/* Whether all of a segment is this rank's. */
static inline bool trek_arena_has_whole(const trek_arena *arena, int segment)
{
    return arena->owner ? arena->owner[segment] == arena->sharer : !arena->cuts;
}
/* Where an element is in the buffers of what is this rank's; -1: it is another's. */
int64_t trek_arena_place(const trek_arena *arena, int part, int64_t at);
/* The next piece of elements [*at, end) of a part that is this rank's, behind which *at stands then. false: there is none. */
bool trek_arena_next_own(const trek_arena *arena, int part, int64_t *at, int64_t end, trek_arena_cut *piece);
/* Elements [begin, begin + count) of a flat tensor: a new view; NULL and MEMORY. */
trek_tensor *trek_arena_stretch(trek_tensor *flat, int64_t begin, int64_t count);
/* Fills the gradients of what is not this rank's with zeros. */
trek_status trek_arena_zero_others(trek_arena *arena);
/* The same layout for a replica's parameters, whose data becomes `owner`'s
 * (shared memory, one copy); gradients are the replica's own. Names, shapes and dtypes must match: ARGUMENT. */
trek_arena *trek_arena_new_sharing(const trek_params *params, trek_arena *owner);
/* Parameters keep living in the buffers, which live as long as they are referenced, and are
 * ordinary variables again: a gradient that is there stays, one that was zeroed is dropped. */
void trek_arena_free(trek_arena **arena);
/* Fills the gradients with zeros, on the caller's pool, and forgets that there were any. Cannot fail on the CPU. */
void trek_arena_zero_grads(trek_arena *arena);
/* Fills one segment's gradient with zeros. */
void trek_arena_zero_segment(trek_arena *arena, int segment);
/* Forgets that there were gradients: for whoever has zeroed the memory in a pass of its own. */
void trek_arena_forget_grads(trek_arena *arena);
/* Sets every segment's `used`: this rank's backward has given it a gradient, and it is not frozen. */
void trek_arena_mark_used(trek_arena *arena);
/* Counts a write to the data of each parameter whose segment of `updated` (the same layout;
 * may be arena itself) is used: saved tensors and packed weights notice. A replica that
 * shares its owner's memory calls this after the owner's optimizer has committed. */
void trek_arena_bump(trek_arena *arena, const trek_arena *updated);
/* Brings masters up to date with 16-bit parameters that were written from outside: values that a
 * master rounds to keep it. MEMORY; what was not done is done by the next call. */
trek_status trek_arena_refresh_masters(trek_arena *arena);
/* Notes, after an update, that masters go with the parameters as they are. */
void trek_arena_note_masters(trek_arena *arena);
/* Sum of squares of all gradients in f64; *finite false if one is inf or NaN. */
void trek_arena_sum_squares(const trek_arena *arena, double *sum, bool *finite);
/* Segment of a parameter, or -1. */
int trek_arena_find(const trek_arena *arena, const trek_var *param);

#endif
