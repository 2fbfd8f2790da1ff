/* SPDX-License-Identifier: Apache-2.0 */
/* Converting states in u8 (tensor/state_code.h) from and to f32, with the functions that updates use. */
#include "optim/optimizer_internal.h"
#include "tensor/state_round.h"
#include "tensor/tensor_internal.h"

static trek_update_slice slice_of(const trek_tensor *codes, const trek_tensor *scales, bool positive)
{
    return (trek_update_slice){ .state = { codes->data }, .scale = { (float *)scales->data }, .count = codes->numel,
                                .positive = positive, .state_dtype = TREK_U8 };
}

/* Returns the number of elements in the piece that begins at `at`. */
static int64_t piece_at(const trek_update_slice *slice, int64_t at)
{
    return slice->count - at < TREK_STATE_BLOCK ? slice->count - at : TREK_STATE_BLOCK;
}

trek_status trek_codes_of(const trek_tensor *values, bool positive, trek_tensor **codes, trek_tensor **scales)
{
    int64_t blocks = trek_code_blocks(values->numel);
    *codes = trek_tensor_empty(trek_tensor_shape(values), TREK_U8, trek_cpu(0));
    *scales = trek_tensor_empty(trek_shape_make(&blocks, 1), TREK_F32, trek_cpu(0));
    if (!*codes || !*scales) {
        trek_tensor_release(*codes);
        trek_tensor_release(*scales);
        *codes = *scales = NULL;
        return trek_error_status();
    }
    trek_update_slice slice = slice_of(*codes, *scales, positive);
    for (int64_t at = 0; at < slice.count; at += TREK_STATE_BLOCK)
        trek_cpu_backend()->write_states(&slice, at, piece_at(&slice, at), (const float *)values->data + at);
    return TREK_OK;
}

trek_tensor *trek_codes_read(const trek_tensor *codes, const trek_tensor *scales, bool positive)
{
    trek_tensor *values = trek_tensor_empty(trek_tensor_shape(codes), TREK_F32, trek_cpu(0));
    if (!values)
        return NULL;
    trek_update_slice slice = slice_of(codes, scales, positive);
    for (int64_t at = 0; at < slice.count; at += TREK_STATE_BLOCK)
        trek_cpu_backend()->read_states(&slice, at, piece_at(&slice, at), (float *)values->data + at);
    return values;
}
