/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens from logits, and texts from models: docs/inference.md. */
#ifndef TREK_NN_GENERATE_H
#define TREK_NN_GENERATE_H

#include "nn/kv_cache.h"

TREK_BEGIN

/* As Hugging Face's generate() has them, and in its order: repetition penalty, temperature, top-k, top-p. All 0: plain sampling.
 */
typedef struct trek_sample_opts {
    double temperature;       /* logits are divided by it; default 1; TREK_ZERO: greedy, the largest logit (the first of equals),
                               * and what follows but the penalty has no say */
    int64_t top_k;            /* only the k largest logits, with those that equal the last of them; default: all */
    double top_p;             /* only the largest that together have a probability of at least top_p: what is kept is left of the
                               * whole by removing the least probable ones for as long as these add up to at most 1 - top_p; at
                               * least one; default 1: all */
    double repetition_penalty; /* logits of tokens that are there already are divided by it where they are positive, else
                                * multiplied (Keskar and others 2019); default 1 */
    uint64_t seed;            /* of the random numbers, with `step` and the row's number: the same ones give the same tokens, on
                               * any machine and number of threads, of the same logits */
    uint64_t step;            /* another one for each call; trek_generate's own */
    const int64_t *const *seen; /* [rows] tokens that are there, for the penalty, */
    const int64_t *n_seen;    /* [rows] and how many; trek_generate's own */
} trek_sample_opts;

/* The scores that tokens are drawn from: logits [V] or [B, V], floating, on any device -> f64 on the CPU, of the same shape, in
 * the present scope: divided by the temperature, and -infinity for what is left out. A NaN is taken for -infinity. opts may be
 * NULL. ARGUMENT: options out of range, logits that leave nothing to choose from (none finite or +infinity), a seen token that
 * is none. */
TREK_API trek_var *trek_filter_logits(trek_var *logits, const trek_sample_opts *opts);
/* A token for each row of them, tokens [B]. Softmax and sum are computed in f64. A GPU is waited for. Errors as above; nothing is
 * written then. */
TREK_API trek_status trek_sample_logits(trek_var *logits, const trek_sample_opts *opts, int64_t *tokens);

typedef struct trek_generate_opts {
    trek_sample_opts sample;
    int64_t max_new_tokens;   /* of each row; default 20 */
    const int64_t *eos;       /* a row ends behind any of these tokens, */
    int64_t n_eos;            /* of which there are so many; default: none, rows have max_new_tokens */
    bool no_cache;            /* each step runs on the whole sequences: for models that cannot be cached, and to compare */
    /* Called for each new token as it comes, rows in order; false ends the row behind it. May be NULL. */
    bool (*on_token)(int64_t row, int64_t token, void *arg);
    void *arg;
} trek_generate_opts;

/* Continues `rows` prompts, each of its own length (at least 1), by a model from tokens [B, T] (i64) to logits [B, T, V], or
 * [B, 1, V] where its forward uses trek_last_positions: in eval mode, under no_grad, with a cache of its own (trek_forward_cached
 * says what a model needs for that; without a cache shorter prompts are padded behind, with token 0, and attention has to be
 * causal). Tokens are on the device of the model's first parameter. tokens: room for rows max_new_tokens, row r's new ones from
 * tokens + r max_new_tokens on; counts [rows]: how many, the token that ended a row included. Any number of threads may do this
 * with one model at once. A module in training mode runs as it is set. opts may be NULL.
 * On failure tokens and counts mean nothing. ARGUMENT: options or prompts out of range; SHAPE: logits of another shape; what the
 * model reports. */
TREK_API trek_status trek_generate(trek_module *model, const int64_t *const *prompts, const int64_t *lengths, int64_t rows,
                                   const trek_generate_opts *opts, int64_t *tokens, int64_t *counts);

TREK_END

#endif
