/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by plain ops. Internal. */
#ifndef TREK_AUTOGRAD_ATTENTION_INTERNAL_H
#define TREK_AUTOGRAD_ATTENTION_INTERNAL_H

#include <stdbool.h>

#include "autograd/var.h"

/* softmax(scale q k^T + mask) [B, H, T, S] of q [B, H, T, D], k [B, G, S, D], in f32 of 16 bits; 0 for a query that sees none. */
trek_var *trek_attention_probabilities(trek_var *q, trek_var *k, trek_var *mask, bool causal, double scale);

#endif
