/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a model's weights over training: exponential moving averages (EMA) and plain averages (SWA), as
 * torch.optim.swa_utils.AveragedModel. Averages of 16-bit values are kept in f32.
 *
 *     trek_averaged *average = trek_averaged_new(model, &(trek_averaged_opts){ .decay = 0.999 });
 *     ... after each step:      trek_averaged_update(average);
 *     ... for an evaluation:    trek_averaged_swap(average), evaluate, trek_averaged_swap(average);
 *
 * Batch norm after SWA (torch.optim.swa_utils.update_bn): after a swap, call trek_module_recount_statistics(model, true), run a
 * forward of each batch in training mode without gradients, and call trek_module_recount_statistics(model, false). If the ranks
 * of a graph do not share their parameters, trek_graph_parameters_changed after each swap brings the values to all ranks. */
#ifndef TREK_OPTIM_AVERAGED_H
#define TREK_OPTIM_AVERAGED_H

#include "nn/module.h"
#include "nn/state.h"

TREK_BEGIN

/* Options of trek_averaged_new. */
typedef struct trek_averaged_opts {
    /* EMA: the average becomes average * decay + value * (1 - decay); in [0, 1], TREK_ZERO for 0. Default 0: SWA, in which all
     * updates have the same weight. */
    double decay;
    bool buffers; /* averages floating buffers as well; otherwise the average has the latest buffers */
} trek_averaged_opts;

/* The averages of a module's parameters. */
typedef struct trek_averaged trek_averaged;

/* Returns averages of the module's parameters, or NULL on failure. The first update copies the values. opts may be NULL, which
 * means SWA. The caller owns the averages; the module must outlive them.
 * Errors: ARGUMENT if decay is outside [0, 1], MEMORY. */
TREK_API trek_averaged *trek_averaged_new(trek_module *module, const trek_averaged_opts *opts);

/* Frees the averages. *averaged may be NULL and is NULL afterwards. */
TREK_API void trek_averaged_free(trek_averaged **averaged);

/* Adds the current values of the module to the averages.
 * Errors: STATE while the values are swapped. */
TREK_API trek_status trek_averaged_update(trek_averaged *averaged);

/* Exchanges the values of the module with the averages; a second call exchanges them back. On failure nothing has changed, unless
 * the memory of a device runs out. */
TREK_API trek_status trek_averaged_swap(trek_averaged *averaged);

/* Returns the number of updates. */
TREK_API int64_t trek_averaged_updates(const trek_averaged *averaged);

/* Returns a state for checkpoints with copies of the averages under the module's names and the number of updates, or NULL on
 * failure. The caller owns it.
 * Errors: STATE while the values are swapped. */
TREK_API trek_state *trek_averaged_state(trek_averaged *averaged);

/* Replaces the averages by a saved state.
 * Errors: ARGUMENT if the state is of another module. Nothing has changed then. */
TREK_API trek_status trek_averaged_load(trek_averaged *averaged, const trek_state *state);

TREK_END

#endif
