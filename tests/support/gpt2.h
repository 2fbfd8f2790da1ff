/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 of trek's layers, and the rules by which its tensors are those of transformers' GPT2LMHeadModel. */
#ifndef TREK_TESTS_SUPPORT_GPT2_H
#define TREK_TESTS_SUPPORT_GPT2_H

#include "nn/config.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "nn/state_tensors.h"

typedef struct gpt2_config {
    int64_t vocabulary, positions, width, layers, heads;
} gpt2_config;

/* From the folder's config.json. */
trek_status gpt2_config_read(const char *folder, gpt2_config *config);
/* Token numbers i64 [N, T] -> logits [N, T, vocabulary]; the head is the table of tokens. No dropout. */
trek_module *gpt2_new(const gpt2_config *config);

enum { GPT2_RULES = 10 };
extern const trek_state_rule gpt2_rules[GPT2_RULES];

#endif
