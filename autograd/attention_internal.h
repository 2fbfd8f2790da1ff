/* SPDX-License-Identifier: Apache-2.0 */
/* Attention through plain ops. */
#ifndef TREK_AUTOGRAD_ATTENTION_INTERNAL_H
#define TREK_AUTOGRAD_ATTENTION_INTERNAL_H

#include <stdbool.h>

#include "autograd/var.h"

/* Returns softmax(scale q k^T + mask) [B, H, T, S] of q [B, H, T, D] and k [B, G, S, D], in f32 for 16-bit inputs. It
 * is 0 for a query that sees no key. */
trek_var *trek_attention_probabilities(trek_var *q, trek_var *k, trek_var *mask, bool causal, double scale);

#endif
