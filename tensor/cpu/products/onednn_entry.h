/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN's primitives, made once for each geometry. Private to onednn.c and onednn_entry.c, the only files that call
 * oneDNN (2.x). */
#ifndef TREK_TENSOR_CPU_PRODUCTS_ONEDNN_ENTRY_H
#define TREK_TENSOR_CPU_PRODUCTS_ONEDNN_ENTRY_H

#include "tensor/cpu/products/onednn.h"

#ifdef TREK_ONEDNN_CONV

#include <oneapi/dnnl/dnnl.h>

/* An array in plain layout, in the layout that the primitive wants, and the conversion between them (NULL: they are
 * the same). */
typedef struct conv_side {
    dnnl_memory_desc_t plain, wanted;
    dnnl_primitive_t reorder;
} conv_side;

enum { SIDE_FIRST, SIDE_SECOND, SIDE_RESULT, SIDES };

/* A primitive for one pass and geometry. It never changes once it is in the table, and lives as long as the process. */
typedef struct conv_entry {
    trek_conv key;
    int64_t y_filters;   /* those of y in memory: more than the key's for a slice of the filters */
    trek_onednn_pass pass;
    bool bias, winograd, last, usable; /* last: x and y are stored channels last in memory */
    dnnl_primitive_t primitive;
    conv_side side[SIDES];
    dnnl_memory_desc_t bias_desc, scratch;
} conv_entry;

extern dnnl_engine_t trek_onednn_engine; /* of the CPU; made with the first entry */

/* Returns the entry like `wanted` (with key, y_filters, pass, bias, winograd and last), which is made when it is
 * first needed. Returns NULL if oneDNN cannot do it. */
const conv_entry *trek_onednn_entry(const conv_entry *wanted);

#endif
#endif
