/* SPDX-License-Identifier: Apache-2.0 */
/* What the steppers of graph/ and distributed/ need from an optimizer.
 *
 * A step is prepare, apply, commit. Everything that can fail happens in prepare, and at creation, where all memory is
 * allocated; apply and commit neither fail, wait nor allocate. Ranks that share an arena apply one slice each between
 * one prepare and one commit. */
#ifndef TREK_OPTIM_OPTIMIZER_INTERNAL_H
#define TREK_OPTIM_OPTIMIZER_INTERNAL_H

#include <string.h>

#include "nn/state_tensors.h"
#include "optim/arena.h"
#include "optim/groups.h"
#include "optim/optimizer_class.h"
#include "optim/optimizer_state.h"
#include "optim/scaler_internal.h"

/* A contiguous stretch of the arena that one kernel call updates: segments of one group with the same number of
 * updates. */
typedef struct trek_optimizer_run {
    int part, group;
    int segment;         /* the first */
    int64_t begin, end;  /* elements of the part */
    int64_t steps;       /* updates before this one; 0 unless trek_optimizer_by_step */
    uint32_t fresh;      /* states that hold nothing yet */
    double correction[TREK_UPDATE_CORRECTIONS];
} trek_optimizer_run;

typedef struct trek_optimizer_group {
    trek_optimizer_spec spec; /* defaults filled in, with the current lr */
    double initial_lr;
    uint32_t kept;            /* states that these options need */
} trek_optimizer_group;

typedef struct trek_device_update trek_device_update;

/* What sharers have in pieces: states, the scales of states in u8 (at TREK_OWN_SCALES + s), and masters. */
enum { TREK_OWN_SCALES = TREK_UPDATE_STATES, TREK_OWN_MASTERS = 2 * TREK_UPDATE_STATES, TREK_GATHERED };
/* Counts of steps, which all sharers have. */
#define TREK_OWN_STEPS TREK_GATHERED
/* The gathered pieces of all sharers, in the arena's layout and in host memory, while they are in use. */
typedef struct trek_optimizer_gathered {
    trek_tensor *of[TREK_GATHERED][TREK_DTYPE_COUNT]; /* NULL if there is none */
} trek_optimizer_gathered;

/* Continues a hash from `key` (multiply and rotate; not cryptographic). */
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
    int32_t corrected[TREK_UPDATE_CORRECTIONS]; /* options of the class; 0 for none */
    trek_arena *arena;
    bool owns_arena;
    uint64_t plans;                    /* how often runs were planned */
    bool stale;                        /* runs no longer match groups, step counts or buffers */
    int n_groups, cap_groups, n_runs;
    trek_optimizer_group *groups;
    trek_optimizer_run *runs;          /* at most [n_segments] */
    bool *active;                      /* [n_segments] the segments that the runs cover */
    uint32_t *written;                 /* [n_segments] bit s: state s has been written */
    trek_tensor *state[TREK_UPDATE_STATES][TREK_DTYPE_COUNT]; /* flat, in the arena's layout (of sharers: its cuts); NULL if
                                                               * not needed */
    trek_tensor *scale[TREK_UPDATE_STATES][TREK_DTYPE_COUNT]; /* of states in u8: one for TREK_CODE_BLOCK elements; otherwise
                                                               * NULL */
    uint32_t positive;                 /* bit s: state s is never below 0 */
    trek_optimizer_gathered *gathered; /* of sharers: what is being exported; NULL if nothing is */
    int64_t *
        place[TREK_UPDATE_STATES]; /* [2 n_segments] for states that do not follow the arena's layout: where segments begin,
                                    * first in this rank's part, then in the whole; otherwise NULL */
    struct trek_whole_workspaces *workspaces; /* of classes that update whole parameters */
    trek_device_update *device_update; /* for steps decided in the device's memory; NULL if the host decides */
    trek_update_state last;            /* the last step, if the host decided it */
    bool unscaled;                     /* trek_grad_scaler_unscale has handled the gradients since the last step */
    bool found_inf;                    /* and found inf or NaN */
    uint64_t edits;                    /* changes of groups and learning rates by the program */
    uint64_t resets;                   /* the number of trek_optimizer_reset calls, which other ranks follow */
    uint64_t followed;                 /* the edits that trek_optimizer_follow has taken over */
    const struct trek_optimizer_behind *behind; /* NULL if it stands alone */
    void *behind_arg;
};

/* Returns the dtype of a part's state: bf16 or u8 instead of f32 if the groups say so, in which case all of them do. */
static inline trek_dtype trek_optimizer_state_dtype(const trek_optimizer *optimizer, int part)
{
    trek_dtype wide = optimizer->arena->parts[part].wide;
    return wide == TREK_F32 ? optimizer->groups[0].spec.state_dtype : wide;
}
/* Returns the number of blocks with scales of their own (tensor/state_code.h). */
static inline int64_t trek_code_blocks(int64_t elements) { return (elements + TREK_CODE_BLOCK - 1) / TREK_CODE_BLOCK; }
static inline bool trek_optimizer_is_coded(const trek_optimizer *optimizer)
{
    return optimizer->groups[0].spec.state_dtype == TREK_U8;
}
/* Returns whether kernels get step counts, because the class or the rounding of its state needs them. */
static inline bool trek_optimizer_by_step(const trek_optimizer *optimizer)
{
    return optimizer->klass->by_step || optimizer->groups[0].spec.state_dtype == TREK_BF16;
}

/* The learning rate is the first option of every class. */
static inline double *trek_lr_of(trek_optimizer_spec *spec) { return &spec->options[0]; }

/* Fails with ARGUMENT, naming the option, so that a trainer can refuse early. */
trek_status trek_optimizer_spec_check(const trek_optimizer_spec *spec);
/* optim/optimizer_class.c: fill in the defaults and check class and ranges. They fail with ARGUMENT. */
trek_status trek_optimizer_resolve(trek_optimizer_spec *spec);
trek_status trek_optimizer_check_option(const trek_optimizer_class *klass, int option, double value);
/* Turns resolved options back into options to ask for, in which a 0 stays 0. */
trek_optimizer_spec trek_optimizer_spec_again(const trek_optimizer_spec *resolved);
/* Returns the states that resolved options need, as bits. */
uint32_t trek_optimizer_kept(const trek_optimizer_spec *spec);
/* Returns the class's states that are never below 0, as bits. */
uint32_t trek_optimizer_positive(const trek_optimizer_class *klass);
/* Lists the options that have corrections, in order, ended by 0. */
void trek_optimizer_corrected(const trek_optimizer_class *klass, int32_t *corrected);
/* Fails with UNSUPPORTED if the arena's device has no kernel for the class. */
trek_status trek_optimizer_find_kernel(const trek_optimizer_class *klass, const trek_arena *arena, trek_update_kernel *kernel);

/* Makes an optimizer over an arena that the caller owns and that outlives it. Fails with STATE if the arena has
 * sharers whose cuts may lie within parameters and the class updates whole ones. */
trek_optimizer *trek_optimizer_new_over(trek_optimizer_spec spec, trek_arena *arena);

/* --- optim/optimizer_whole.c: classes that update whole parameters --- */

static inline bool trek_optimizer_is_whole(const trek_optimizer *optimizer) { return optimizer->klass->whole != NULL; }
/* Announces that this many threads update at the same time, each with its own parameters (the default is 1). Fails
 * with MEMORY. */
trek_status trek_optimizer_share(trek_optimizer *optimizer, int threads);
/* Checks the shapes of the active segments and makes scratch memory for them. Fails with ARGUMENT or MEMORY. */
trek_status trek_optimizer_ready_whole(trek_optimizer *optimizer);
/* Makes the scratch memory that updates of all parameters which train will need, in advance. Fails with MEMORY. */
trek_status trek_optimizer_reserve_whole(trek_optimizer *optimizer);
/* Applies one run, which is one parameter. The slice covers all of it. */
void trek_optimizer_apply_whole(trek_optimizer *optimizer, const trek_optimizer_run *run, trek_update_slice *slice);
void trek_optimizer_free_workspaces(trek_optimizer *optimizer);

/* Returns in *owner which of an arena's sharers owns each parameter: a new array [n_segments] for classes that update
 * whole parameters, NULL for others. Fails with ARGUMENT or MEMORY. */
trek_status trek_optimizer_owners(const trek_optimizer_spec *spec, const trek_arena *arena, int **owner);

/* Returns how many numbers state s has for segment k (0 for none). *begin is their position in this rank's buffers,
 * which have all of them, and *shape their shape in checkpoints. */
int64_t trek_optimizer_state_extent(const trek_optimizer *optimizer, int s, int k, int64_t *begin, trek_shape *shape);
/* Returns the size of state s in a part, limited to what belongs to this rank. */
int64_t trek_optimizer_state_count(const trek_optimizer *optimizer, int s, int part);
/* Returns whether the size of state s differs from the number of elements (s may be TREK_OWN_.. as well). */
static inline bool trek_optimizer_is_uneven(const trek_optimizer *optimizer, int s)
{
    return s < TREK_UPDATE_STATES && optimizer->place[s];
}
/* Returns where segment k's numbers of state s begin in the whole, which consists of all sharers' pieces. */
int64_t trek_optimizer_whole_begin(const trek_optimizer *optimizer, int s, int k);
/* For an uneven state: the range of one sharer's parameters (-1: of all) in a part. */
void trek_optimizer_state_of(const trek_optimizer *optimizer, int s, int part, int owner, int64_t *begin, int64_t *count);

/* Plans the update of the segments whose `used` is set and that are not frozen. (trek_arena_mark_used sets it from
 * this rank's gradients; with several ranks the caller adds what the others used.) Fails with STATE if a parameter is
 * no longer in the arena, or with the thread's error if one is set; nothing has changed then. */
trek_status trek_optimizer_prepare(trek_optimizer *optimizer);
/* Updates elements [begin, end) of a part, if they are planned. Gradients are first limited to [-value_limit,
 * value_limit] (unless it is <= 0), then multiplied by grad_scale, and set to 0 afterwards if zero_grad is set.
 * Threads may call it at the same time for ranges that do not overlap. The update is element-wise, so the bits are
 * the same for every slicing. Where elements share scales (state in u8), a range includes the blocks whose first
 * elements are in it; so unless it ends with a block, the gradients of the rest of its last block have to be ready as
 * well. */
void trek_optimizer_apply_range(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, double grad_scale,
                                double value_limit, bool zero_grad);
/* The same with gradients from `grads`, the address of element 0 of a buffer in the part's layout. zero_grad then
 * zeroes that buffer. */
void trek_optimizer_apply_range_from(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, void *grads,
                                     double grad_scale, double value_limit, bool zero_grad);
/* Called once after all ranges: updates the step counts and versions of the parameters. */
void trek_optimizer_commit(trek_optimizer *optimizer);

/* Combines sum_squares and finite over all sharers. On a device update_norm has left them in its memory. */
typedef trek_status (*trek_join_norm_fn)(trek_update_state *state, void *arg);
typedef struct trek_step_opts {
    double max_norm, max_value;  /* gradients are not clipped if <= 0 */
    double factor;               /* gradients are multiplied by it first; 0 means 1 */
    trek_grad_scaler *scaler;    /* the scaler whose scale the loss had: gradients are divided by it, and the step is skipped
                                  * if one is inf or NaN; may be NULL */
    bool adapt;                  /* the scaler's update belongs to the step */
    bool zero_grad;              /* includes trek_arena_zero_grads in the same pass; not allowed with a shared arena */
    bool whole;                  /* every sharer has the gradients of all: it measures them by itself */
    trek_join_norm_fn join_norm; /* required with sharers, unless `whole` is set */
    void *arg;                   /* passed to it */
    const double *norm_parts; /* on a device: the gradients were measured, over all sharers (trek_backend.norm_parts); NULL: no */
    int64_t n_norm_parts;
} trek_step_opts;
static inline double trek_step_factor(const trek_step_opts *opts) { return opts->factor > 0 ? opts->factor : 1; }
/* Takes over what the program has changed in the groups of the first rank's optimizer. Fails with MEMORY. */
trek_status trek_optimizer_follow(trek_optimizer *optimizer, const trek_optimizer *first);
/* A whole step: mark_used, prepare, norm, decision, all ranges, commit. On a device the host does not wait. */
trek_status trek_optimizer_step_with(trek_optimizer *optimizer, const trek_step_opts *opts);
/* Returns the outcome of the last step_with. On a device this waits for it. */
trek_status trek_optimizer_last_step(trek_optimizer *optimizer, trek_update_state *state);
/* Returns the norm of the gradients in the last step_with, before clipping and without the loss's scale, or NaN if it
 * was not measured. This waits. */
double trek_optimizer_grad_norm(trek_optimizer *optimizer);

/* From now on steps are decided in the memory of the arena's device (see tensor/update.h), even if it is the CPU,
 * which tests use. Devices whose memory the host cannot read do this on their own. */
trek_status trek_optimizer_use_device_update(trek_optimizer *optimizer);
/* optim/device_update.c, for optimizer.c and optimizer_state.c. */
trek_status trek_device_update_step(trek_optimizer *optimizer, const trek_step_opts *opts);
trek_status trek_device_update_read(trek_optimizer *optimizer); /* reads step counts into the host's segments; waits */
void trek_device_update_forget(trek_optimizer *optimizer);   /* the host's step counts were changed and have to be written */
void trek_device_update_free(trek_optimizer *optimizer);
/* Returns the addresses, for callers that capture steps, and in *plan a number that changes when a captured step no
 * longer fits. Returns NULL if there are no records. */
const trek_update *trek_optimizer_update(const trek_optimizer *optimizer, uint64_t *plan);
/* Called before a replay of a captured step: writes learning rates, limits and the RNG step to the device's memory. */
trek_status trek_device_update_numbers(trek_optimizer *optimizer, const trek_step_opts *opts);

/* The number of steps with records that this thread has captured instead of run. */
extern _Thread_local uint64_t trek_device_update_captured;
/* The same, unless the device has the numbers already. Does nothing without records. */
trek_status trek_device_update_before_replay(trek_optimizer *optimizer, const trek_step_opts *opts);
/* Called after the replay: updates the versions of the parameters. */
void trek_device_update_after_replay(trek_optimizer *optimizer);

/* Sets the rate of a schedule: group 0 gets lr, and the others keep their initial ratio to it. */
trek_status trek_optimizer_schedule_lr(trek_optimizer *optimizer, double lr);

/* Multiplies all gradients by a factor. */
trek_status trek_grads_scale(const trek_params *params, double factor);
/* Returns the factor that limits a joint norm to max_norm: PyTorch's max_norm / (norm + 1e-6), at most 1, and 1 for a
 * norm that is not finite. */
double trek_clip_factor(double norm, double max_norm);

/* State by name, for checkpoints. "<parameter>.<state>", with the class's state names ("exp_avg"), has the
 * parameter's shape and dtype (f32 for 16-bit parameters; bf16 or u8 if state is kept in it, with u8 accompanied by
 * "<parameter>.<state>.scale", f32, one for each block of tensor/state_code.h). "<parameter>.step" is an i64 scalar,
 * and "<parameter>.master" is the f32 copy of a 16-bit parameter. Parameters that were never updated are left out, as
 * in PyTorch. After a reset, which leaves masters unchanged, only the masters are there. Tensors are views of the
 * live state: save them before the next step. */
typedef struct trek_optimizer_entry {
    char *name;
    trek_tensor *tensor;     /* NULL if it is still in a file: */
    const struct trek_state_entry *stored; /* of which an import by sharers reads what each of them keeps */
} trek_optimizer_entry;

/* For sharers, who gather each other's pieces before an export (optimizer_gather.c): allocates memory for the states,
 * scales and masters (s: TREK_OWN_..) of all sharers, from number `first` on. Fails with MEMORY.
 * trek_optimizer_gather_end frees it. */
trek_status trek_optimizer_gather_begin(trek_optimizer *optimizer, int first);
void trek_optimizer_gather_end(trek_optimizer *optimizer);
/* Return this rank's buffer with only its own elements, and the gathered one. NULL if there is none. */
trek_tensor *trek_optimizer_own(const trek_optimizer *optimizer, int s, int part);
trek_tensor *trek_optimizer_gathered_of(const trek_optimizer *optimizer, int s, int part);
/* Returns how many elements share one number of it. */
static inline int64_t trek_optimizer_own_block(int s)
{
    return s >= TREK_OWN_SCALES && s < TREK_OWN_MASTERS ? TREK_CODE_BLOCK : 1;
}

/* What an optimizer keeps, while sharers change their cuts (optimizer_renew.c). Everything is owned. */
typedef struct trek_optimizer_buffers {
    trek_tensor *state[TREK_UPDATE_STATES][TREK_DTYPE_COUNT], *scale[TREK_UPDATE_STATES][TREK_DTYPE_COUNT];
    int64_t *place[TREK_UPDATE_STATES];
} trek_optimizer_buffers;
/* Called when the arena has other cuts: makes empty buffers for them, as many as the optimizer has. *before gets the old ones.
 * Fails with MEMORY; nothing has changed then. */
trek_status trek_optimizer_renew(trek_optimizer *optimizer, trek_optimizer_buffers *before);
/* Exchanges the optimizer's buffers with others, together with the cuts for which they were made. */
void trek_optimizer_exchange(trek_optimizer *optimizer, trek_optimizer_buffers *with);
void trek_optimizer_buffers_clear(trek_optimizer_buffers *buffers);
/* Make a state of a part, empty; and find out where parameters have their numbers of a state that does not follow the arena's
 * layout. They do nothing if that has been done, and fail with MEMORY. */
trek_status trek_optimizer_make_state(trek_optimizer *optimizer, int s, int part);
trek_status trek_optimizer_lay_out(trek_optimizer *optimizer, int s);

#define TREK_OPTIMIZER_SCALE ".scale"

/* What a checkpoint has of a parameter. */
typedef struct trek_optimizer_item {
    char *name;
    int kind;                /* the number of a state, or TREK_OWN_.. */
    int segment;
    trek_dtype dtype;
    trek_shape shape;
} trek_optimizer_item;
/* Lists it for all parameters, also for sharers, whose lists are the same. Masters are up to date afterwards. The caller frees
 * the list. Fails with MEMORY, or errors of the device. */
trek_status trek_optimizer_list(trek_optimizer *optimizer, trek_optimizer_item **items, int *n);
void trek_optimizer_list_free(trek_optimizer_item **items, int *n);
/* Returns a view of an item's tensor, or NULL with MEMORY. Sharers must have gathered it, unless it is a count of steps. */
trek_tensor *trek_optimizer_item_tensor(const trek_optimizer *optimizer, const trek_optimizer_item *item);

/* Returns a new array of *n entries, to be freed with trek_optimizer_export_free (NULL with *n 0 and no error if
 * there is nothing yet). Fails with STATE if there are sharers that have not gathered their state. */
trek_status trek_optimizer_export(trek_optimizer *optimizer, trek_optimizer_entry **entries, int *n);
void trek_optimizer_export_free(trek_optimizer_entry *entries, int n);
/* Takes over all state; parameters without entries start again. Masters may be missing: at the next step, existing
 * ones are kept where they round to the parameter. Fails with FORMAT, naming the entry, if it belongs to no parameter
 * or has another shape; nothing has changed then. */
trek_status trek_optimizer_import(trek_optimizer *optimizer, const trek_optimizer_entry *entries, int n);
/* The same in two parts, for state from elsewhere: missing masters are made again from the parameters. The first part
 * can fail, the second cannot (without `commit` it does nothing). *plan is NULL after a failure. The entries are not
 * needed until the end. */
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
/* The parties behind an optimizer that is one of several: a graph's ranks, or ranks that divide its state and each
 * make the following calls. All of them except `end` are collectives. Each rank takes part whatever its own status,
 * which it passes as `own`, and the result is the same for all. If a function is NULL, the optimizer does the work,
 * or refuses it, by itself. */
typedef struct trek_optimizer_behind {
    trek_status (*load)(void *arg, trek_status own, const trek_optimizer_loaded *state); /* all or none take it over */
    trek_status (*meet)(void *arg, trek_status own);   /* before a step */
    trek_status (*share)(void *arg, trek_status own);  /* after a step that is not skipped: distributes the parameters */
    trek_status (*gather)(void *arg, trek_status own); /* makes an export possible until trek_optimizer_gather_end */
    trek_join_norm_fn join_norm;       /* for steps that a device decides */
    void (*end)(void *arg);            /* the optimizer is freed */
} trek_optimizer_behind;
/* Sets the learning rates of all groups; there is one for each. */
trek_status trek_optimizer_set_rates(trek_optimizer *optimizer, const trek_optimizer_loaded *state);

/* --- optim/codes.c: states in u8 (tensor/state_code.h), on the CPU, from and to f32 --- */

/* Makes new codes in the values' shape, and the scales of their blocks. Fails with MEMORY and makes none then. */
trek_status trek_codes_of(const trek_tensor *values, bool positive, trek_tensor **codes, trek_tensor **scales);
/* Returns a new tensor, or NULL with MEMORY. */
trek_tensor *trek_codes_read(const trek_tensor *codes, const trek_tensor *scales, bool positive);

/* --- optim/optimizer_save.c --- */

#define TREK_OPTIMIZER_RATES "lr" /* the name of the groups' rates in a state */
/* Adds the groups' learning rates under a name. */
trek_status trek_optimizer_add_rates(trek_state *state, const trek_optimizer *optimizer, const char *name);
/* Adds the groups' learning rates under the name `rates`, and the entries under their names after `prefix`: either as
 * they are, or as copies on the CPU. */
trek_status trek_optimizer_add_to(trek_state *state, trek_optimizer *optimizer, const char *rates, const char *prefix,
                                  bool copies);
/* Reads the rates: *n of them, which the caller frees even after a failure. Fails with FORMAT, with a message that
 * begins with `where`, if one is not a valid rate. */
trek_status trek_optimizer_read_rates(trek_tensor *tensor, const char *where, double **rates, int *n);

#endif
