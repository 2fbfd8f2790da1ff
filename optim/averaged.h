/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of a model's weights over training: exponential ones (EMA) and plain ones (SWA), as
 * torch.optim.swa_utils.AveragedModel's. Averages of 16-bit values are kept in f32.
 *
 *     trek_averaged *average = trek_averaged_new(model, &(trek_averaged_opts){ .decay = 0.999 });
 *     ... after each step:      trek_averaged_update(average);
 *     ... for an evaluation:    trek_averaged_swap(average), evaluate, trek_averaged_swap(average);
 *
 * SWA's batch norm: after a swap, trek_module_recount_statistics(model, true), a forward of each batch in training mode without
 * gradients, trek_module_recount_statistics(model, false) (torch.optim.swa_utils.update_bn). With a graph on ranks that do not
 * share their parameters, trek_graph_parameters_changed after each swap brings the values to all. */
#ifndef TREK_OPTIM_AVERAGED_H
#define TREK_OPTIM_AVERAGED_H

#include "nn/module.h"
#include "nn/state.h"

TREK_BEGIN

typedef struct trek_averaged_opts {
    double decay;            /* of an EMA: average * decay + value * (1 - decay); in [0, 1], TREK_ZERO for 0. Default 0: SWA, all
                                updates with the same weight */
    bool buffers;            /* floating buffers are averaged, too; else the average has the latest ones */
} trek_averaged_opts;

typedef struct trek_averaged trek_averaged;

/* The first update takes the values over as they are. The module must outlive the average. opts may be NULL: SWA. */
TREK_API trek_averaged *trek_averaged_new(trek_module *module, const trek_averaged_opts *opts);
TREK_API void trek_averaged_free(trek_averaged **averaged);
/* Takes the module's present values in. STATE while they are swapped. */
TREK_API trek_status trek_averaged_update(trek_averaged *averaged);
/* The module gets the averages, and its own values are kept; called again, the other way round. All or nothing but for lack of
 * memory on a device. */
TREK_API trek_status trek_averaged_swap(trek_averaged *averaged);
TREK_API int64_t trek_averaged_updates(const trek_averaged *averaged);

/* For checkpoints: copies under the module's names, and the number of updates. STATE while values are swapped. */
TREK_API trek_state *trek_averaged_state(trek_averaged *averaged);
/* ARGUMENT for a state of another module; then nothing has changed. */
TREK_API trek_status trek_averaged_load(trek_averaged *averaged, const trek_state *state);

TREK_END

#endif
