/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state: its dtype, saving, loading, resetting. */
#ifndef TREK_OPTIM_OPTIMIZER_STATE_H
#define TREK_OPTIM_OPTIMIZER_STATE_H

#include "nn/state.h"
#include "optim/optimizer.h"

TREK_BEGIN

/* Returns the spec of the same optimizer with its state (moments, momentum) kept in `dtype`.
 *
 *   - TREK_F32: the state as it is without this function.
 *   - TREK_BF16: 2 bytes less for each number.
 *   - TREK_U8: 3 bytes less for each number.
 *
 * AdamW with f32 parameters takes 16, 12 or 10 bytes for each parameter with its gradient and state.
 * Example: trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 3e-4 }), TREK_BF16).
 *
 * Updates are computed in f32. The state of f64 parameters stays f64, and 16-bit parameters keep their f32 master copies. All
 * groups use the same dtype: a group whose spec sets none takes the optimizer's. The results have the same bits for any number of
 * threads or ranks and after resuming.
 *
 * bf16 numbers are rounded up or down at random, in proportion (stochastic rounding; Gupta and others, "Deep learning with
 * limited numerical precision", 2015). Rounding to nearest would keep averages from changing by less than half of bf16's spacing,
 * 0.4 %. The random numbers depend only on the parameter's position and its count of updates.
 *
 * u8 numbers are 8-bit codes of blocks (after Dettmers and others, "8-bit Optimizers via Block-wise Quantization", 2022). The 256
 * neighbouring elements of a block, fewer in small parameters, share an f32 scale. Each is the nearest of 256 numbers times this
 * scale, which are a few percent apart and span seven decades (tensor/state_code.h). Averages keep following the gradients near a
 * block's maximum; smaller ones move in steps of a few percent. A block that contains inf or NaN becomes NaN. Parameters of all
 * sizes use it. It cannot be used for averaged parameters (.average, and policies that average: UNSUPPORTED at the first batch),
 * unless an outer optimizer keeps the states separate for each rank.
 *
 * Saved states keep their dtype, u8 as codes "NAME.exp_avg" and scales "NAME.exp_avg.scale". A state of any of these dtypes can
 * be loaded into any other; it is rounded to nearest.
 *
 * Errors, reported where an optimizer or a group is made from the spec: ARGUMENT for another dtype, or if a group has another
 * dtype than the optimizer. UNSUPPORTED for LAMB, LARS, Adafactor, Muon and other classes that update whole parameters. */
TREK_API trek_optimizer_spec trek_with_state(trek_optimizer_spec spec, trek_dtype dtype);

/* Resets moments and step counts. Groups, learning rates and the f32 master copies of 16-bit parameters stay. */
TREK_API trek_status trek_optimizer_reset(trek_optimizer *optimizer);

/* Returns copies of the optimizer's state on the CPU, as state_dict() in PyTorch. Returns NULL on failure. The caller owns it
 * (trek_state_free); trek_state_write writes it to a file. trek_checkpoint_save saves the optimizer of a graph.
 *
 * The state contains:
 *   - "lr", f64 [groups].
 *   - "NAME.step", an i64 scalar, for each parameter that has been updated.
 *   - The numbers of its class in the shape of the parameter, for example "NAME.exp_avg". They are f32 for 16-bit parameters; see
 *     also trek_with_state.
 *   - "NAME.master", f32, for 16-bit parameters; it stays after trek_optimizer_reset.
 *
 * Errors: MEMORY, and those of the device. */
TREK_API trek_state *trek_optimizer_save(trek_optimizer *optimizer);

/* Replaces the optimizer's state by a saved one; parameters without entries start with no state. Options other than learning
 * rates are not saved: make the optimizer with the same options and groups.
 *
 * Ranks: the optimizer of a graph (trek_graph_optimizer) loads it on all ranks of the process, each its part if it has only a
 * part (.shard). In a job of several processes the call is collective: all processes call it with the same state, each
 * with its own copy. All of them load it or none does.
 *
 * Errors: FORMAT, with a message that names the entry, if an entry belongs to no parameter or has another shape, if the state of
 * a parameter is incomplete, if the number of groups differs or if a learning rate is invalid. PEER if another process has
 * failed, ARGUMENT if the processes' states differ, MEMORY. On errors nothing has changed. */
TREK_API trek_status trek_optimizer_load(trek_optimizer *optimizer, const trek_state *state);

TREK_END

#endif
