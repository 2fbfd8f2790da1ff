/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens from logits, and texts from models: docs/inference.md. */
#ifndef TREK_NN_GENERATE_H
#define TREK_NN_GENERATE_H

#include "nn/kv_cache.h"

TREK_BEGIN

/* How tokens are drawn, as in Hugging Face's generate() and in its order: repetition penalty, temperature, top-k, top-p. If all
 * fields are 0, tokens are drawn from the softmax of the logits. */
typedef struct trek_sample_opts {
    /* Divides the logits; default 1. TREK_ZERO: greedy, the largest logit (the first of equal ones); top_k and top_p are ignored
     * then. */
    double temperature;
    int64_t top_k; /* keeps the k largest logits, and those that equal the last of them; default: all */
    /* Keeps the most probable tokens that together have at least this probability; default 1: all. See trek_filter_logits. */
    double top_p;
    /* Penalises tokens that occur already: divides their positive logits and multiplies their negative ones by this (Keskar and
     * others 2019); default 1. */
    double repetition_penalty;
    /* Seed of the random numbers; the step and the number of the row are mixed into it. Equal logits and seeds give equal tokens
     * on every machine. */
    uint64_t seed;
    uint64_t step;              /* number of the call, which should differ from call to call; trek_generate sets it */
    const int64_t *const *seen; /* for the penalty: an array of tokens for each row; trek_generate sets it */
    const int64_t *n_seen;      /* for the penalty: the number of tokens of each row; trek_generate sets it */
} trek_sample_opts;

/* Returns the scores that tokens are drawn from: the logits after penalty and temperature, with -infinity for those that are left
 * out. top_p removes the least probable tokens as long as the removed ones add up to at most 1 - top_p, and keeps at least one. A
 * NaN counts as -infinity. opts may be NULL.
 * Shapes: logits [V] or [B, V] -> the same.
 * Dtypes: any floating dtype, on any device; the result is f64 on the CPU, in the current scope.
 * Errors: ARGUMENT if an option is out of range, if a row has no logit that is finite or +infinity, or if a seen token is out of
 * range. */
TREK_API trek_var *trek_filter_logits(trek_var *logits, const trek_sample_opts *opts);

/* Draws a token for each row of the logits and writes it to tokens [B]. Softmax and sums are computed in f64. It synchronises
 * with the GPU. The number of threads does not change the tokens.
 * Errors: those of trek_filter_logits; nothing is written then. */
TREK_API trek_status trek_sample_logits(trek_var *logits, const trek_sample_opts *opts, int64_t *tokens);

/* Options of trek_generate. */
typedef struct trek_generate_opts {
    trek_sample_opts sample; /* how tokens are drawn */
    int64_t max_new_tokens;  /* largest number of new tokens of a row; default 20 */
    const int64_t *eos;      /* tokens that end a row */
    int64_t n_eos;           /* number of tokens in eos; default 0: every row gets max_new_tokens */
    bool no_cache;           /* runs each step on the whole sequences, for models that cannot be cached, and for comparison */
    /* Called for each new token as soon as it is drawn, rows in order. Returning false ends the row after this token. May be
     * NULL. */
    bool (*on_token)(int64_t row, int64_t token, void *arg);
    void *arg; /* passed to on_token */
} trek_generate_opts;

/* Continues `rows` prompts, each with its own length of at least 1, with new tokens of the model. The model maps tokens [B, T]
 * (i64) to logits [B, T, V], or [B, 1, V] if its forward uses trek_last_positions. opts may be NULL.
 *
 *   - tokens: capacity for rows * max_new_tokens; the new tokens of row r begin at tokens + r * max_new_tokens.
 *   - counts [rows]: the number of new tokens of each row, including the token that ended it.
 *
 * It runs under no_grad with a cache of its own; trek_forward_cached says what a model needs for that. Without a cache, shorter
 * prompts are padded at the end with token 0, and attention has to be causal. The model should be in eval mode; a module in
 * training mode runs as it is. Tokens are on the device of the model's first parameter.
 * Threads: any number of threads may call it with one model at the same time.
 * Errors: ARGUMENT if an option or a prompt is out of range, SHAPE if the logits have another shape, and those of the model. On
 * failure the contents of tokens and counts are undefined. */
TREK_API trek_status trek_generate(trek_module *model, const int64_t *const *prompts, const int64_t *lengths, int64_t rows,
                                   const trek_generate_opts *opts, int64_t *tokens, int64_t *counts);

TREK_END

#endif
