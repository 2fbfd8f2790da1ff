/* SPDX-License-Identifier: Apache-2.0 */
/* The table of oneDNN's primitives. */
#include "tensor/cpu/products/onednn_entry.h"

#ifdef TREK_ONEDNN_CONV

#include <pthread.h>

enum { TABLE_LIMIT = 256 }; /* further geometries use trek's own loops */

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static conv_entry table[TABLE_LIMIT]; /* static, because it would count as memory in use when the allocator is replaced */
static int table_count;
dnnl_engine_t trek_onednn_engine;

static dnnl_data_type_t type_of(trek_dtype dtype) { return dtype == TREK_BF16 ? dnnl_bf16 : dnnl_f32; }

static bool describe(dnnl_memory_desc_t *desc, trek_dtype dtype, dnnl_format_tag_t tag, int64_t a, int64_t b, int64_t c,
                     int64_t d)
{
    const dnnl_dims_t dims = { a, b, c, d };
    return dnnl_memory_desc_init_by_tag(desc, 4, dims, type_of(dtype), tag) == dnnl_success;
}

/* Describes some channels of an array that has `all` of them. */
static bool describe_part(dnnl_memory_desc_t *desc, trek_dtype dtype, int64_t images, int64_t channels, int64_t all,
                          int64_t height, int64_t width, bool last)
{
    const dnnl_dims_t dims = { images, channels, height, width }, plain = { all * height * width, height * width, width, 1 },
                      turned = { all * height * width, 1, width * all, all };
    return dnnl_memory_desc_init_by_strides(desc, 4, dims, type_of(dtype), last ? turned : plain) == dnnl_success;
}

/* x, weight and y, one of which is the result of each pass. */
enum { ARRAY_X, ARRAY_WEIGHT, ARRAY_Y, ARRAYS };
static const int result_of[3] = { [TREK_ONEDNN_FORWARD] = ARRAY_Y, [TREK_ONEDNN_INPUT_GRAD] = ARRAY_X,
                                  [TREK_ONEDNN_WEIGHT_GRAD] = ARRAY_WEIGHT };

/* Describes the operation of a pass by descriptors of x, weight and y, and of a bias. */
static bool describe_conv(const conv_entry *e, dnnl_prop_kind_t kind, const dnnl_memory_desc_t *array,
                          const dnnl_memory_desc_t *bias, dnnl_convolution_desc_t *desc)
{
    const dnnl_memory_desc_t *x = &array[ARRAY_X], *w = &array[ARRAY_WEIGHT], *y = &array[ARRAY_Y];
    const trek_conv *c = &e->key;
    const dnnl_dims_t strides = { c->stride_h, c->stride_w }, dilations = { c->dilation_h - 1, c->dilation_w - 1 };
    const dnnl_dims_t before = { c->pad_h, c->pad_w };
    /* pixels after the last window are not read: the padding at the end is what the window needs */
    const dnnl_dims_t after = { (c->out_h - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1 - c->height - c->pad_h,
                                (c->out_w - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1 - c->width - c->pad_w };
    dnnl_alg_kind_t way = e->winograd ? dnnl_convolution_winograd : dnnl_convolution_direct;
    dnnl_status_t status;
    if (kind == dnnl_backward_data)
        status = dnnl_dilated_convolution_backward_data_desc_init(desc, way, x, w, y, strides, dilations, before, after);
    else if (kind == dnnl_backward_weights)
        status = dnnl_dilated_convolution_backward_weights_desc_init(desc, way, x, w, NULL, y, strides, dilations, before, after);
    else
        status = dnnl_dilated_convolution_forward_desc_init(desc, kind, way, x, w, bias, y, strides, dilations, before, after);
    return status == dnnl_success;
}

static bool make_reorder(conv_side *s, bool result)
{
    if (dnnl_memory_desc_equal(&s->plain, &s->wanted))
        return true;
    dnnl_primitive_desc_t pd;
    if (dnnl_reorder_primitive_desc_create(&pd, result ? &s->wanted : &s->plain, trek_onednn_engine,
                                           result ? &s->plain : &s->wanted, trek_onednn_engine,
                                           NULL) != dnnl_success)
        return false;
    bool fine = dnnl_primitive_create(&s->reorder, pd) == dnnl_success;
    dnnl_primitive_desc_destroy(pd);
    return fine;
}

/* Takes the layouts that the primitive chose. */
static bool finish_entry(conv_entry *e, dnnl_primitive_desc_t pd)
{
    static const dnnl_query_t queries[3][SIDES] = {
        { dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md },
        { dnnl_query_diff_dst_md, dnnl_query_weights_md, dnnl_query_diff_src_md },
        { dnnl_query_diff_dst_md, dnnl_query_src_md, dnnl_query_diff_weights_md },
    };
    bool fine = dnnl_primitive_create(&e->primitive, pd) == dnnl_success;
    e->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    for (int k = 0; fine && k < SIDES; k++) {
        e->side[k].wanted = *dnnl_primitive_desc_query_md(pd, queries[e->pass][k], 0);
        fine = make_reorder(&e->side[k], k == SIDE_RESULT);
    }
    return fine;
}

static trek_dtype dtype_of(const trek_conv *c, int array, int result) { return array == result ? c->result : c->dtype; }

/* Leaves the layouts to the primitive, except that images that are stored channels last are used directly if it can. */
static bool describe_open(const conv_entry *e, int result, dnnl_memory_desc_t *to)
{
    const trek_conv *c = &e->key;
    const dnnl_format_tag_t any = dnnl_format_tag_any;
    if (!describe(&to[ARRAY_WEIGHT], dtype_of(c, ARRAY_WEIGHT, result), any, c->filters, c->channels, c->kernel_h, c->kernel_w))
        return false;
    if (e->last && !e->winograd)
        return describe(&to[ARRAY_X], dtype_of(c, ARRAY_X, result), dnnl_nhwc, c->images, c->channels, c->height, c->width) &&
               describe_part(&to[ARRAY_Y], dtype_of(c, ARRAY_Y, result), c->images, c->filters, e->y_filters, c->out_h, c->out_w,
                             true);
    return describe(&to[ARRAY_X], dtype_of(c, ARRAY_X, result), any, c->images, c->channels, c->height, c->width) &&
           describe(&to[ARRAY_Y], dtype_of(c, ARRAY_Y, result), any, c->images, c->filters, c->out_h, c->out_w);
}

/* Returns whether it is the library's reference implementation, which is slower than any other method. */
static bool is_reference(dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success || strncmp(name, "ref", 3) == 0;
}

static bool describe_plain(conv_entry *e)
{
    static const int sides[3][SIDES] = { { ARRAY_X, ARRAY_WEIGHT, ARRAY_Y }, { ARRAY_Y, ARRAY_WEIGHT, ARRAY_X },
                                         { ARRAY_Y, ARRAY_X, ARRAY_WEIGHT } };
    const trek_conv *c = &e->key;
    const int result = result_of[e->pass];
    dnnl_memory_desc_t plain[ARRAYS];
    if (!describe(&plain[ARRAY_X], dtype_of(c, ARRAY_X, result), e->last ? dnnl_nhwc : dnnl_nchw, c->images, c->channels,
                  c->height, c->width) ||
        !describe(&plain[ARRAY_WEIGHT], dtype_of(c, ARRAY_WEIGHT, result), dnnl_oihw, c->filters, c->channels, c->kernel_h,
                  c->kernel_w) ||
        !describe_part(&plain[ARRAY_Y], dtype_of(c, ARRAY_Y, result), c->images, c->filters, e->y_filters, c->out_h, c->out_w,
                       e->last))
        return false;
    for (int k = 0; k < SIDES; k++)
        e->side[k].plain = plain[sides[e->pass][k]];
    return true;
}

static bool make_entry(conv_entry *e)
{
    const bool is_forward = e->pass == TREK_ONEDNN_FORWARD;
    const dnnl_dims_t bias_dims = { e->key.filters };
    dnnl_memory_desc_t ahead[ARRAYS], open[ARRAYS]; /* of the forward pass, which the other passes need, and of this pass */
    dnnl_convolution_desc_t forward, desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t hint = NULL, pd = NULL;
    bool fine = describe_plain(e) && describe_open(e, is_forward ? ARRAY_Y : ARRAYS, ahead) &&
                describe_open(e, result_of[e->pass], open) &&
                dnnl_memory_desc_init_by_tag(&e->bias_desc, 1, bias_dims, dnnl_f32, dnnl_x) == dnnl_success &&
                describe_conv(e, dnnl_forward_training, ahead, e->bias ? &e->bias_desc : NULL, &forward) &&
                dnnl_primitive_attr_create(&attr) == dnnl_success &&
                dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
                dnnl_primitive_desc_create(&hint, &forward, attr, trek_onednn_engine, NULL) == dnnl_success;
    if (fine && !is_forward)
        fine = describe_conv(e, e->pass == TREK_ONEDNN_INPUT_GRAD ? dnnl_backward_data : dnnl_backward_weights, open, NULL,
                             &desc) &&
               dnnl_primitive_desc_create(&pd, &desc, attr, trek_onednn_engine, hint) == dnnl_success;
    fine = fine && !is_reference(is_forward ? hint : pd) && finish_entry(e, is_forward ? hint : pd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_attr_destroy(attr);
    return fine;
}

static bool same(const conv_entry *e, const conv_entry *wanted)
{
    return e->pass == wanted->pass && e->bias == wanted->bias && e->winograd == wanted->winograd &&
           e->last == wanted->last &&
           e->y_filters == wanted->y_filters && memcmp(&e->key, &wanted->key, sizeof e->key) == 0;
}

const conv_entry *trek_onednn_entry(const conv_entry *wanted)
{
    pthread_mutex_lock(&table_mutex);
    int k = 0;
    while (k < table_count && !same(&table[k], wanted))
        k++;
    conv_entry *e = k < TABLE_LIMIT ? &table[k] : NULL;
    if (e && k == table_count && (trek_onednn_engine || dnnl_engine_create(&trek_onednn_engine, dnnl_cpu, 0) == dnnl_success)) {
        *e = *wanted;
        e->usable = make_entry(e); /* an entry that fails is kept, so that it is not tried again */
        table_count++;
    }
    pthread_mutex_unlock(&table_mutex);
    return e && e->usable ? e : NULL;
}

#else
typedef int trek_onednn_entry_is_absent; /* C does not allow an empty translation unit */
#endif
