/* SPDX-License-Identifier: Apache-2.0 */
/* Small decoders, from tokens [B, T] to logits [B, T, V], that tests of caches and of generation run. */
#ifndef TREK_TESTS_NN_DECODER_H
#define TREK_TESTS_NN_DECODER_H

#include "nn/layers.h"

enum { WORDS = 37, LONGEST = 160 };

/* LEARNED: GPT-2's parts. ROTARY: Llama's: groups of heads share keys. WAVES: layers of the library alone, in a sequential. */
typedef enum decoder_kind { LEARNED, ROTARY, WAVES, DECODERS } decoder_kind;

/* In eval mode; the test fails where it cannot be made. */
trek_module *decoder_new(decoder_kind kind, int layers, trek_dtype dtype);
/* Tokens [rows, steps] of a stream, on test_device. */
trek_var *decoder_tokens(uint32_t stream, int64_t rows, int64_t steps);

#endif
