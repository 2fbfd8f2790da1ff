/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels. Each provides one function over contiguous rows. This code applies it to tensors of any
 * strides, broadcast to the output's shape: data that are not contiguous go through small buffers, and so do 16-bit
 * floats, which rows see as f32. */
#ifndef TREK_TENSOR_CPU_ELEMENTWISE_MAP_H
#define TREK_TENSOR_CPU_ELEMENTWISE_MAP_H

#include "tensor/cpu/kernels.h"

#define TREK_MAP_INPUTS 3

/* Computes n elements; `out` may be one of the inputs. Inputs and output are aligned to their elements. */
typedef void (*trek_row_fn)(void *out, const void *const *in, int64_t n, const trek_attrs *attrs);

/* How an operand is stored: elements of this many bytes, or 16-bit floats (odd numbers, which cannot be strides of
 * theirs). */
typedef enum trek_lane {
    TREK_LANE_1 = 1,
    TREK_LANE_2 = 2,
    TREK_LANE_4 = 4,
    TREK_LANE_8 = 8,
    TREK_LANE_BF16 = 17,
    TREK_LANE_F16 = 19
} trek_lane;

/* Returns the bytes of an element in memory, and as rows see it. */
static inline int trek_lane_bytes(trek_lane lane) { return lane >= TREK_LANE_BF16 ? 2 : (int)lane; }
static inline int trek_lane_row_bytes(trek_lane lane) { return lane >= TREK_LANE_BF16 ? 4 : (int)lane; }

/* Below this number of elements another thread is not worth its wake-up: for loops limited by memory, for vectorised
 * functions, for calls of libm. */
enum { TREK_GRAIN_CHEAP = 32768, TREK_GRAIN_FUNCTION = 8192, TREK_GRAIN_CALL = 2048 };

typedef struct trek_map {
    trek_row_fn row;
    int64_t grain;
    int n_in;
    trek_lane out, in[TREK_MAP_INPUTS];
    bool moves;  /* the row function only moves bits: a row needs no buffer if one side is stored as rows are */
    trek_row_fn one;   /* the same if the last input is one element for the whole row; NULL: none */
    trek_row_fn pairs; /* the same if each input is every second element of its memory, the first one of a pair; NULL: none */
} trek_map;

/* For any strides and any size, on the threads of the pool. */
trek_status TREK_ISA_NAME(trek_map_any)(const trek_op_call *call, const trek_map *map);

/* Copy elements between memory and contiguous rows; stride in bytes. */
void TREK_ISA_NAME(trek_lane_load)(trek_lane lane, void *row, const char *from, int64_t stride, int64_t n);
void TREK_ISA_NAME(trek_lane_store)(trek_lane lane, char *to, int64_t stride, const void *row, int64_t n);

/* Handles the rest of a row of 16-bit elements for a row function of whole vectors: n elements, fewer than it processes at
 * once, padded with zeros to TREK_ROW_VECTOR. */
#define TREK_ROW_VECTOR 32
void TREK_ISA_NAME(trek_row_rest_16)(trek_row_fn row, uint16_t *to, const void *const *from, int n_in, int64_t n,
                                     const trek_attrs *attrs);

/* Calls the row function directly for small contiguous operands of one shape. Contiguous tensors with as many
 * elements as the output have its shape, except for sizes of 1. */
static inline __attribute__((always_inline)) trek_status trek_map_run(const trek_op_call *call, const trek_map *map)
{
    const trek_tensor *out = call->outputs[0];
    bool direct = map->out < TREK_LANE_BF16 && out->contiguous && out->numel <= map->grain;
    const void *in[TREK_MAP_INPUTS];
    for (int k = 0; k < map->n_in; k++) {
        const trek_tensor *t = call->inputs[k];
        in[k] = t->data;
        direct = direct && map->in[k] < TREK_LANE_BF16 && t->contiguous && t->numel == out->numel;
    }
    if (!direct)
        return TREK_ISA_NAME(trek_map_any)(call, map);
    map->row(out->data, in, out->numel, &call->attrs);
    return TREK_OK;
}

/* The same as a call, for what takes longer than a call anyway: its row functions are not repeated in the kernels, which are a
 * few instructions then. lanes: TREK_MAP_LANES. */
trek_status TREK_ISA_NAME(trek_map_call)(const trek_op_call *call, trek_row_fn row, int grain, int n_in, uint32_t lanes);
#define TREK_MAP_LANES(out, ...) TREK_MAP_LANES_(out, __VA_ARGS__, 0, 0, 0)
#define TREK_MAP_LANES_(out, first, second, third, ...)                                                    \
    ((uint32_t)(out) | (uint32_t)(first) << 8 | (uint32_t)(second) << 16 | (uint32_t)(third) << 24)

/* Defines a kernel, name(call), for a row function, for one with a single last element, for one of every second element, and the
 * lanes of output and inputs. */
#define TREK_LANE_(width) TREK_LANE_##width
#define TREK_LANE(width) TREK_LANE_(width)
#define TREK_MAP_KERNEL(name, row_fn, grain_, n_in_, out_, ...)                                        \
    TREK_MAP_KERNEL_FORMS(name, row_fn, NULL, NULL, grain_, n_in_, out_, __VA_ARGS__)
#define TREK_MAP_KERNEL_ONE(name, row_fn, one_fn, grain_, n_in_, out_, ...)                            \
    TREK_MAP_KERNEL_FORMS(name, row_fn, one_fn, NULL, grain_, n_in_, out_, __VA_ARGS__)
#define TREK_MAP_KERNEL_FORMS(name, row_fn, one_fn, pairs_fn, grain_, n_in_, out_, ...)                \
    static trek_status name(const trek_op_call *call)                                                  \
    {                                                                                                  \
        static const trek_map map = { row_fn, grain_, n_in_, out_, { __VA_ARGS__ }, false, one_fn, pairs_fn }; \
        if ((grain_) < TREK_GRAIN_CHEAP)                                                               \
            return TREK_ISA_NAME(trek_map_call)(call, row_fn, grain_, n_in_,                           \
                                                TREK_MAP_LANES(out_, __VA_ARGS__));                    \
        return trek_map_run(call, &map);                                                               \
    }

#endif
