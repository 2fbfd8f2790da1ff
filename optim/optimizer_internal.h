/* SPDX-License-Identifier: Apache-2.0 */
/* What the steppers of graph/ and distributed/ need of an optimizer. Internal.
 *
 * A step is prepare, apply, commit. All that can fail happens in prepare (and
 * at creation, where all memory is got); apply and commit neither fail, wait
 * nor allocate. Ranks that share an arena apply one slice each between one
 * prepare and one commit. */
#ifndef TREK_OPTIM_OPTIMIZER_INTERNAL_H
#define TREK_OPTIM_OPTIMIZER_INTERNAL_H

#include <string.h>

#include "optim/arena.h"
#include "optim/optimizer_class.h"
#include "optim/scaler_internal.h"

/* A contiguous stretch of the arena that one kernel call updates: segments of
 * one group that were updated equally often. */
typedef struct trek_optimizer_run {
    int part, group;
    int segment;         /* the first */
    int64_t begin, end;  /* elements of the part */
    int64_t steps;       /* updates so far, this one not counted; 0 unless trek_optimizer_by_step */
    uint32_t fresh;      /* states that hold nothing yet */
    double correction[TREK_UPDATE_CORRECTIONS];
} trek_optimizer_run;

typedef struct trek_optimizer_group {
    trek_optimizer_spec spec; /* defaults filled in, lr as it is now */
    double initial_lr;
    uint32_t kept;            /* states that these options need */
} trek_optimizer_group;

typedef struct trek_device_update trek_device_update;

/* What sharers have in pieces: states, the scales of those in u8 (at TREK_OWN_SCALES + s), masters. */
enum { TREK_OWN_SCALES = TREK_UPDATE_STATES, TREK_OWN_MASTERS = 2 * TREK_UPDATE_STATES, TREK_GATHERED };
/* The same of all sharers of an arena in its layout, in host memory, while somebody looks at them. */
typedef struct trek_optimizer_gathered {
    trek_tensor *of[TREK_GATHERED][TREK_DTYPE_COUNT]; /* NULL: there is none */
} trek_optimizer_gathered;

/* A number that goes on from `key` and tells values apart (multiply and rotate; no cryptography). */
static inline uint64_t trek_mix(uint64_t key, uint64_t value)
{
    key = (key ^ value) * 0x9E3779B97F4A7C15u;
    return key ^ key >> 29;
}
static inline uint64_t trek_mix_double(uint64_t key, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return trek_mix(key, bits);
}

struct trek_optimizer {
    const trek_optimizer_class *klass;
    trek_update_kernel kernel;
    int32_t corrected[TREK_UPDATE_CORRECTIONS]; /* options of the class; 0: none */
    trek_arena *arena;
    bool owns_arena;
    uint64_t plans;                    /* how often runs were planned */
    bool stale;                        /* runs do not fit groups, step counts or buffers any more */
    int n_groups, cap_groups, n_runs;
    trek_optimizer_group *groups;
    trek_optimizer_run *runs;          /* [n_segments] at most */
    bool *active;                      /* [n_segments] what runs were made for */
    uint32_t *written;                 /* [n_segments] bit s: state s has been written */
    trek_tensor *state[TREK_UPDATE_STATES][TREK_DTYPE_COUNT]; /* flat, in the arena's layout (of sharers: its cuts); NULL: not
                                                                 needed */
    trek_tensor *scale[TREK_UPDATE_STATES][TREK_DTYPE_COUNT]; /* of states in u8: one for TREK_CODE_BLOCK elements; else NULL */
    uint32_t positive;                 /* bit s: state s is never below 0 */
    trek_optimizer_gathered *gathered; /* of sharers: what is exported; NULL: nothing at present */
    int64_t *
        place[TREK_UPDATE_STATES]; /* [2 n_segments] where segments begin in states that are not in the arena's layout: in what
                                      is this rank's, then in the whole; else NULL */
    struct trek_whole_rooms *rooms;    /* of classes of whole parameters */
    trek_device_update *device_update; /* steps are decided in the device's memory; NULL: by the host */
    trek_update_state last;            /* by the host: its last step */
    bool unscaled;                     /* trek_grad_scaler_unscale has been at the gradients since the last step, */
    bool found_inf;                    /* and found this */
    uint64_t edits;                    /* of groups and learning rates, by the program */
    uint64_t resets;                   /* trek_optimizer_reset: how often, which others follow, too */
    uint64_t followed;                 /* trek_optimizer_follow: the edits that were taken over */
    const struct trek_optimizer_behind *behind; /* NULL: it is alone */
    void *behind_arg;
};

/* What a part's state is kept in: bf16 or u8 instead of f32 where groups say so, which all do then. */
static inline trek_dtype trek_optimizer_state_dtype(const trek_optimizer *optimizer, int part)
{
    trek_dtype wide = optimizer->arena->parts[part].wide;
    return wide == TREK_F32 ? optimizer->groups[0].spec.state_dtype : wide;
}
/* How many blocks have scales of their own (tensor/state_code.h). */
static inline int64_t trek_code_blocks(int64_t elements) { return (elements + TREK_CODE_BLOCK - 1) / TREK_CODE_BLOCK; }
static inline bool trek_optimizer_is_coded(const trek_optimizer *optimizer)
{
    return optimizer->groups[0].spec.state_dtype == TREK_U8;
}
/* Whether kernels are given counts of steps: the class asks for them, or its state's rounding does. */
static inline bool trek_optimizer_by_step(const trek_optimizer *optimizer)
{
    return optimizer->klass->by_step || optimizer->groups[0].spec.state_dtype == TREK_BF16;
}

/* Every class begins with it. */
static inline double *trek_lr_of(trek_optimizer_spec *spec) { return &spec->options[0]; }

/* OK, or ARGUMENT naming the option: so that a trainer can refuse early. */
trek_status trek_optimizer_spec_check(const trek_optimizer_spec *spec);
/* optim/optimizer_class.c. Fills the defaults in and checks class and ranges: ARGUMENT. */
trek_status trek_optimizer_resolve(trek_optimizer_spec *spec);
trek_status trek_optimizer_check_option(const trek_optimizer_class *klass, int option, double value);
/* Resolved options as one asks for them: what is 0 there is so on purpose. */
trek_optimizer_spec trek_optimizer_spec_again(const trek_optimizer_spec *resolved);
/* The states that resolved options need, as bits. */
uint32_t trek_optimizer_kept(const trek_optimizer_spec *spec);
/* The class's states that are never below 0, as bits. */
uint32_t trek_optimizer_positive(const trek_optimizer_class *klass);
/* The options that are corrected, in order; 0: no more. */
void trek_optimizer_corrected(const trek_optimizer_class *klass, int32_t *corrected);
/* UNSUPPORTED where the arena's device has none. */
trek_status trek_optimizer_find_kernel(const trek_optimizer_class *klass, const trek_arena *arena, trek_update_kernel *kernel);

/* An optimizer over an arena that the caller keeps and that outlives it. STATE: the arena has sharers whose cuts may lie within
 * parameters, and the class updates whole ones. */
trek_optimizer *trek_optimizer_new_over(trek_optimizer_spec spec, trek_arena *arena);
trek_arena *trek_optimizer_arena(trek_optimizer *optimizer);

/* --- optim/optimizer_whole.c: classes that update whole parameters --- */

static inline bool trek_optimizer_is_whole(const trek_optimizer *optimizer) { return optimizer->klass->whole != NULL; }
/* So many threads update at the same time, parameters of their own each (1 where nobody says so). MEMORY. */
trek_status trek_optimizer_share(trek_optimizer *optimizer, int threads);
/* Checks the active segments' shapes and makes rooms for them: ARGUMENT, MEMORY. */
trek_status trek_optimizer_ready_whole(trek_optimizer *optimizer);
/* One run, which is one parameter; slice: of all of it. */
void trek_optimizer_apply_whole(trek_optimizer *optimizer, const trek_optimizer_run *run, trek_update_slice *slice);
void trek_optimizer_free_rooms(trek_optimizer *optimizer);

/* Who of an arena's sharers is to have which parameter: a new array, [n_segments], of a class that updates whole parameters, NULL
 * of others. ARGUMENT, MEMORY. */
trek_status trek_optimizer_owners(const trek_optimizer_spec *spec, const trek_arena *arena, int **owner);

/* Where segment k's numbers of state s are in what is this rank's (it has all of them), and how many; shape as checkpoints have
 * it. 0: none. */
int64_t trek_optimizer_state_extent(const trek_optimizer *optimizer, int s, int k, int64_t *begin, trek_shape *shape);
/* The numbers that state s has in a part, as far as they are this rank's. */
int64_t trek_optimizer_state_count(const trek_optimizer *optimizer, int s, int part);
/* Whether state s has not a number for each element (s: TREK_OWN_.., too). */
static inline bool trek_optimizer_is_uneven(const trek_optimizer *optimizer, int s)
{
    return s < TREK_UPDATE_STATES && optimizer->place[s];
}
/* Where segment k's numbers of state s begin in the whole, which all sharers' together are; */
int64_t trek_optimizer_whole_begin(const trek_optimizer *optimizer, int s, int k);
/* and, of an uneven state, those of one sharer's parameters (-1: of all) in a part. */
void trek_optimizer_state_of(const trek_optimizer *optimizer, int s, int part, int owner, int64_t *begin, int64_t *count);

/* Plans the update of the segments whose `used` is set and that are not frozen.
 * (trek_arena_mark_used sets it from this rank's gradients; with several ranks
 * the caller adds what the others used.) STATE if a parameter no longer lives
 * in the arena, the thread's error if one is set; then nothing has changed. */
trek_status trek_optimizer_prepare(trek_optimizer *optimizer);
/* Updates elements [begin, end) of a part, as far as they are planned. Gradients are brought into [-value_limit, value_limit]
 * first (<= 0: not), multiplied by grad_scale, and set to 0 afterwards if zero_grad. Threads may
 * call it at the same time for ranges that do not overlap; for the same bits whatever
 * the slicing there is nothing to heed: the update is element-wise. Where elements share scales (state in u8), a range has the
 * blocks whose first elements are in it, and so gradients of elements behind it must be there, unless it ends a block. */
void trek_optimizer_apply_range(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, double grad_scale,
                                double value_limit, bool zero_grad);
/* The same with gradients from `grads`, the address of element 0 of a buffer in the part's layout
 * (which is what zero_grad then zeroes). */
void trek_optimizer_apply_range_from(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, void *grads,
                                     double grad_scale, double value_limit, bool zero_grad);
/* Once, after all ranges: step counts and versions of the parameters. */
void trek_optimizer_commit(trek_optimizer *optimizer);

/* sum_squares and finite, which update_norm has left in the device's memory, become those of all sharers. */
typedef trek_status (*trek_join_norm_fn)(trek_update_state *on_device, void *arg);
typedef struct trek_step_opts {
    double max_norm, max_value;  /* <= 0: gradients are not clipped */
    double factor;               /* gradients are multiplied by it first; 0: 1 */
    trek_grad_scaler *scaler;    /* whose scale the loss had: gradients are divided by it, and the step is skipped if
                                    one is inf or NaN. NULL: none */
    bool adapt;                  /* the scaler's update belongs to the step */
    bool zero_grad;              /* and trek_arena_zero_grads, in the same pass; not with an arena that is shared */
    trek_join_norm_fn join_norm; /* needed there */
    void *arg;                   /* passed to it */
} trek_step_opts;
static inline double trek_step_factor(const trek_step_opts *opts) { return opts->factor > 0 ? opts->factor : 1; }
/* A replica's optimizer takes over what the program has done to the groups of the first rank's. MEMORY. */
trek_status trek_optimizer_follow(trek_optimizer *optimizer, const trek_optimizer *first);
/* A whole step: mark_used, prepare, norm, decision, all ranges, commit. On a device the host does not wait. */
trek_status trek_optimizer_step_with(trek_optimizer *optimizer, const trek_step_opts *opts);
/* The same with a factor for the gradients that is known, decided by the host. */
trek_status trek_optimizer_step_scaled(trek_optimizer *optimizer, double grad_scale, bool zero_grad);
/* What became of the last step_with; on a device this waits for it. */
trek_status trek_optimizer_last_step(trek_optimizer *optimizer, trek_update_state *state);
/* Norm of the gradients in the last step_with, before clipping, without the loss's scale; NaN: not measured. Waits. */
double trek_optimizer_grad_norm(trek_optimizer *optimizer);

/* Steps are decided in the memory of the arena's device from now on, the CPU's too (where it is for tests): see
 * tensor/update.h. Devices that the host cannot read get it by themselves. */
trek_status trek_optimizer_use_device_update(trek_optimizer *optimizer);
/* optim/device_update.c, for optimizer.c and optimizer_state.c. */
trek_status trek_device_update_step(trek_optimizer *optimizer, const trek_step_opts *opts);
trek_status trek_device_update_read(trek_optimizer *optimizer); /* step counts, to the host's segments. Waits */
void trek_device_update_forget(trek_optimizer *optimizer);   /* the host's step counts were changed: they are to be written */
void trek_device_update_free(trek_optimizer *optimizer);
/* The addresses, for whoever captures steps, and a number that changes when a captured step no longer fits. NULL: no records. */
const trek_update *trek_optimizer_update(const trek_optimizer *optimizer, uint64_t *plan);
/* Before a replay of a captured step: learning rates, limits, rng step into the device's memory. */
trek_status trek_device_update_numbers(trek_optimizer *optimizer, const trek_step_opts *opts);

/* Steps over records that this thread has captured instead of done. */
extern _Thread_local uint64_t trek_device_update_captured;
/* The same, unless they are there already. Without records: nothing. */
trek_status trek_device_update_before_replay(trek_optimizer *optimizer, const trek_step_opts *opts);
/* After it: versions of the parameters. */
void trek_device_update_after_replay(trek_optimizer *optimizer);

/* What a schedule sets: group 0 gets lr, the others keep the proportion to it that they were made with. */
trek_status trek_optimizer_schedule_lr(trek_optimizer *optimizer, double lr);

/* Multiplies all gradients. */
trek_status trek_grads_scale(const trek_params *params, double factor);
/* What gradients are multiplied by so that a joint norm becomes at most max_norm: PyTorch's
 * max_norm / (norm + 1e-6), at most 1; 1 for a norm that is not finite. */
double trek_clip_factor(double norm, double max_norm);

/* State by name, for checkpoints: "<parameter>.<state>", the class's names ("exp_avg"), in the
 * parameter's shape and dtype (16-bit ones': f32; or bf16 or u8, where state is kept in it: then with
 * "<parameter>.<state>.scale", f32, one for each block of tensor/state_code.h), "<parameter>.step" (i64 scalar), and
 * "<parameter>.master", the f32 copy of a 16-bit parameter. Parameters that were never updated are left out, as in PyTorch;
 * after a reset, which leaves masters as they are, these are there alone.
 * Tensors are views of the live state: save them before the next step. */
typedef struct trek_optimizer_entry {
    char *name;
    trek_tensor *tensor;
} trek_optimizer_entry;

/* Of sharers: all of them gather first what each has (optimizer_gather.c). Room for it, into which pieces of the sharers' states,
 * scales and masters (s: TREK_OWN_..) are put, from number `first` on; MEMORY. `end` gives it back. */
trek_status trek_optimizer_gather_begin(trek_optimizer *optimizer, int first);
void trek_optimizer_gather_end(trek_optimizer *optimizer);
/* This rank's, in the buffers that hold only its own; NULL: there is none of it. */
trek_tensor *trek_optimizer_own(const trek_optimizer *optimizer, int s, int part);
trek_tensor *trek_optimizer_gathered_of(const trek_optimizer *optimizer, int s, int part);
/* So many elements have one number of it. */
static inline int64_t trek_optimizer_own_block(int s)
{
    return s >= TREK_OWN_SCALES && s < TREK_OWN_MASTERS ? TREK_CODE_BLOCK : 1;
}

/* A new array of *n entries (NULL with *n 0 and no error: nothing yet); free it by trek_optimizer_export_free. STATE: of sharers,
 * who have not gathered it. */
trek_status trek_optimizer_export(trek_optimizer *optimizer, trek_optimizer_entry **entries, int *n);
void trek_optimizer_export_free(trek_optimizer_entry *entries, int n);
/* Takes over all state; parameters without entries begin anew. Masters may be missing; they hold where they round to
 * the parameter as it is at the next step. FORMAT, naming it, for an entry
 * of no parameter, or of another shape; then nothing has changed. */
trek_status trek_optimizer_import(trek_optimizer *optimizer, const trek_optimizer_entry *entries, int n);
/* The same in two parts, for state that comes from elsewhere: masters that are missing are made anew from the parameters. What
 * can fail, and what cannot (or nothing, without commit). *plan is NULL after a failure; entries need not live until the end. */
typedef struct trek_optimizer_import_plan trek_optimizer_import_plan;
trek_status trek_optimizer_import_begin(trek_optimizer *optimizer, const trek_optimizer_entry *entries, int n,
                                        trek_optimizer_import_plan **plan);
void trek_optimizer_import_end(trek_optimizer *optimizer, trek_optimizer_import_plan **plan, bool commit);
/* What trek_optimizer_load takes over, borrowed. */
typedef struct trek_optimizer_loaded {
    const trek_optimizer_entry *entries;
    int n_entries, n_rates;
    const double *rates;               /* of the groups */
} trek_optimizer_loaded;
/* Whoever stands behind an optimizer that is one of several: a graph's ranks, or ranks that divide its state and each call what
 * follows. All but `end` are collectives, to which one comes however it is (own), and whose result is the same for all; NULL: the
 * optimizer does it, or refuses it, by itself. */
typedef struct trek_optimizer_behind {
    trek_status (*load)(void *arg, trek_status own, const trek_optimizer_loaded *state); /* all or none take it over */
    trek_status (*meet)(void *arg, trek_status own);   /* before a step, and */
    trek_status (*share)(void *arg, trek_status own);  /* after it, unless it is skipped: parameters come to all */
    trek_status (*gather)(void *arg, trek_status own); /* it can be exported, until trek_optimizer_gather_end */
    trek_join_norm_fn join_norm;       /* of steps that a device decides */
    void (*end)(void *arg);            /* the optimizer is freed */
} trek_optimizer_behind;
/* The learning rates of all groups, which are as many. */
trek_status trek_optimizer_set_rates(trek_optimizer *optimizer, const trek_optimizer_loaded *state);

/* --- optim/codes.c: states in u8 (tensor/state_code.h), on the CPU, from and to f32 --- */

/* New codes in the values' shape, and the scales of their blocks. MEMORY: none. */
trek_status trek_codes_of(const trek_tensor *values, bool positive, trek_tensor **codes, trek_tensor **scales);
/* A new tensor; NULL: MEMORY. */
trek_tensor *trek_codes_read(const trek_tensor *codes, const trek_tensor *scales, bool positive);

/* --- optim/optimizer_save.c --- */

#define TREK_OPTIMIZER_RATES "lr" /* of the groups, in a state */
/* Adds the groups' learning rates under a name and the entries under their names after a prefix: as they lie there, or copies on
 * the CPU. */
trek_status trek_optimizer_add_to(trek_state *state, trek_optimizer *optimizer, const char *rates, const char *prefix,
                                  bool copies);
/* The rates back, the caller's also after a failure: *n of them, each a rate; else FORMAT, which begins with `where`. */
trek_status trek_optimizer_read_rates(trek_tensor *tensor, const char *where, double **rates, int *n);

#endif
