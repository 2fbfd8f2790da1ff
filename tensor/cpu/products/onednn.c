/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that calls oneDNN (2.x). Its primitives are made for slices of
 * the batch and run on trek's own threads, one thread each: its own pool, which
 * is OpenMP's, never starts a thread. Slices depend on the batch only, so the
 * results do not depend on the number of threads. */
#include "tensor/cpu/products/onednn.h"

#ifdef TREK_ONEDNN_CONV

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdatomic.h>

/* Of the OpenMP library that oneDNN brings along, if it does. They act on the calling thread only. */
__attribute__((weak)) void omp_set_num_threads(int threads);
__attribute__((weak)) int omp_get_max_threads(void);

static int omp_enter(void)
{
    int threads = omp_get_max_threads && omp_set_num_threads ? omp_get_max_threads() : 0;
    if (threads > 0)
        omp_set_num_threads(1);
    return threads;
}

static void omp_leave(int threads)
{
    if (threads > 0)
        omp_set_num_threads(threads);
}

/* An array in plain layout, in the layout that the primitive wants, and the way between them (NULL: the same). */
typedef struct conv_side {
    dnnl_memory_desc_t plain, wanted;
    dnnl_primitive_t reorder;
} conv_side;

enum { SIDE_FIRST, SIDE_SECOND, SIDE_RESULT, SIDES };

/* A primitive for one pass and geometry. Never changes once it is in the table; lives as long as the process. */
typedef struct conv_entry {
    trek_conv key;
    int64_t y_filters;   /* those of y as it lies in memory: more than the key's for a slice of the filters */
    trek_onednn_pass pass;
    bool bias, usable;
    dnnl_primitive_t primitive;
    conv_side side[SIDES];
    dnnl_memory_desc_t bias_desc, scratch;
} conv_entry;

enum { TABLE_LIMIT = 256 }; /* further geometries are left to our own loops */

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static conv_entry table[TABLE_LIMIT]; /* static: it would count as in use when the allocator is replaced */
static int table_count;
static dnnl_engine_t engine;

static bool describe(dnnl_memory_desc_t *desc, dnnl_format_tag_t tag, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const dnnl_dims_t dims = { a, b, c, d };
    return dnnl_memory_desc_init_by_tag(desc, 4, dims, dnnl_f32, tag) == dnnl_success;
}

/* Some channels of a plain array that has `all` of them. */
static bool describe_part(dnnl_memory_desc_t *desc, int64_t images, int64_t channels, int64_t all, int64_t height, int64_t width)
{
    const dnnl_dims_t dims = { images, channels, height, width }, strides = { all * height * width, height * width, width, 1 };
    return dnnl_memory_desc_init_by_strides(desc, 4, dims, dnnl_f32, strides) == dnnl_success;
}

/* The operation of a pass over descriptors of x, weight, bias and y. */
static bool describe_conv(const conv_entry *e, dnnl_prop_kind_t kind, const dnnl_memory_desc_t *x, const dnnl_memory_desc_t *w,
                          const dnnl_memory_desc_t *bias, const dnnl_memory_desc_t *y, dnnl_convolution_desc_t *desc)
{
    const trek_conv *c = &e->key;
    const dnnl_dims_t strides = { c->stride_h, c->stride_w }, dilations = { c->dilation_h - 1, c->dilation_w - 1 };
    const dnnl_dims_t before = { c->pad_h, c->pad_w };
    /* what the last window leaves over is not read: the padding behind is what the window needs */
    const dnnl_dims_t after = { (c->out_h - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1 - c->height - c->pad_h,
                                (c->out_w - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1 - c->width - c->pad_w };
    dnnl_status_t status;
    if (kind == dnnl_backward_data)
        status = dnnl_dilated_convolution_backward_data_desc_init(desc, dnnl_convolution_direct, x, w, y, strides, dilations,
                                                                  before, after);
    else if (kind == dnnl_backward_weights)
        status = dnnl_dilated_convolution_backward_weights_desc_init(desc, dnnl_convolution_direct, x, w, NULL, y, strides,
                                                                     dilations, before, after);
    else
        status = dnnl_dilated_convolution_forward_desc_init(desc, kind, dnnl_convolution_direct, x, w, bias, y, strides,
                                                            dilations, before, after);
    return status == dnnl_success;
}

static bool make_reorder(conv_side *s, bool result)
{
    if (dnnl_memory_desc_equal(&s->plain, &s->wanted))
        return true;
    dnnl_primitive_desc_t pd;
    if (dnnl_reorder_primitive_desc_create(&pd, result ? &s->wanted : &s->plain, engine, result ? &s->plain : &s->wanted, engine,
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

static bool make_entry(conv_entry *e)
{
    const trek_conv *c = &e->key;
    dnnl_memory_desc_t x, w, y, plain_x, plain_w, plain_y;
    const dnnl_dims_t bias_dims = { c->filters };
    bool fine = describe(&x, dnnl_format_tag_any, c->images, c->channels, c->height, c->width) &&
                describe(&w, dnnl_format_tag_any, c->filters, c->channels, c->kernel_h, c->kernel_w) &&
                describe(&y, dnnl_format_tag_any, c->images, c->filters, c->out_h, c->out_w) &&
                describe(&plain_x, dnnl_nchw, c->images, c->channels, c->height, c->width) &&
                describe(&plain_w, dnnl_oihw, c->filters, c->channels, c->kernel_h, c->kernel_w) &&
                describe_part(&plain_y, c->images, c->filters, e->y_filters, c->out_h, c->out_w) &&
                dnnl_memory_desc_init_by_tag(&e->bias_desc, 1, bias_dims, dnnl_f32, dnnl_x) == dnnl_success;
    const dnnl_memory_desc_t *plain[3][SIDES] = { { &plain_x, &plain_w, &plain_y }, { &plain_y, &plain_w, &plain_x },
                                                  { &plain_y, &plain_x, &plain_w } };
    for (int k = 0; fine && k < SIDES; k++)
        e->side[k].plain = *plain[e->pass][k];
    dnnl_convolution_desc_t forward, desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t hint = NULL, pd = NULL;
    bool is_forward = e->pass == TREK_ONEDNN_FORWARD;
    fine = fine && describe_conv(e, dnnl_forward_training, &x, &w, e->bias ? &e->bias_desc : NULL, &y, &forward) &&
           dnnl_primitive_attr_create(&attr) == dnnl_success &&
           dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
           dnnl_primitive_desc_create(&hint, &forward, attr, engine, NULL) == dnnl_success;
    if (fine && !is_forward)
        fine = describe_conv(e, e->pass == TREK_ONEDNN_INPUT_GRAD ? dnnl_backward_data : dnnl_backward_weights, &x, &w, NULL, &y,
                             &desc) &&
               dnnl_primitive_desc_create(&pd, &desc, attr, engine, hint) == dnnl_success;
    fine = fine && finish_entry(e, is_forward ? hint : pd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_attr_destroy(attr);
    return fine;
}

/* The entry of a slice, made at first need; NULL if oneDNN cannot. */
static const conv_entry *find_entry(const trek_conv *c, int64_t y_filters, trek_onednn_pass pass, bool bias)
{
    pthread_mutex_lock(&table_mutex);
    int k = 0;
    while (k < table_count && !(table[k].pass == pass && table[k].bias == bias && table[k].y_filters == y_filters &&
                                memcmp(&table[k].key, c, sizeof *c) == 0))
        k++;
    conv_entry *e = k < TABLE_LIMIT ? &table[k] : NULL;
    if (e && k == table_count && (engine || dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success)) {
        e->key = *c;
        e->y_filters = y_filters;
        e->pass = pass;
        e->bias = bias;
        e->usable = make_entry(e); /* one that fails stays, so that it is not tried again */
        table_count++;
    }
    pthread_mutex_unlock(&table_mutex);
    return e && e->usable ? e : NULL;
}

typedef struct conv_job {
    const trek_conv *c;
    trek_onednn_pass pass;
    const conv_entry *whole, *rest;   /* for slices of `slice` images (or filters), and for a shorter last one */
    int64_t slice;
    bool by_filters;
    const char *first, *second, *bias;
    char *result, *partials;
    void *weight;                     /* in the layout wanted, reordered once; NULL where it is the result */
    atomic_bool failed;
} conv_job;

static size_t bytes_of(const dnnl_memory_desc_t *desc) { return (dnnl_memory_desc_get_size(desc) + 63) / 64 * 64; }

/* Runs a reorder between two buffers. */
static bool run_reorder(dnnl_stream_t stream, const conv_side *s, bool result, void *plain, void *wanted)
{
    dnnl_memory_t from = NULL, to = NULL;
    bool fine = dnnl_memory_create(&from, result ? &s->wanted : &s->plain, engine, result ? wanted : plain) == dnnl_success &&
                dnnl_memory_create(&to, result ? &s->plain : &s->wanted, engine, result ? plain : wanted) == dnnl_success;
    dnnl_exec_arg_t args[2] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };
    fine = fine && dnnl_primitive_execute(s->reorder, stream, 2, args) == dnnl_success;
    dnnl_memory_destroy(from);
    dnnl_memory_destroy(to);
    return fine;
}

static bool run_conv(dnnl_stream_t stream, const conv_entry *e, void *const *data, const void *bias, void *scratch)
{
    static const int names[3][SIDES] = { { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
                                         { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC },
                                         { DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS } };
    dnnl_exec_arg_t args[SIDES + 2];
    dnnl_memory_t memory[SIDES + 2] = { NULL };
    bool fine = true;
    int n = 0;
    for (; fine && n < SIDES; n++) {
        fine = dnnl_memory_create(&memory[n], &e->side[n].wanted, engine, data[n]) == dnnl_success;
        args[n] = (dnnl_exec_arg_t){ names[e->pass][n], memory[n] };
    }
    fine = fine && dnnl_memory_create(&memory[n], &e->scratch, engine, scratch) == dnnl_success;
    args[n] = (dnnl_exec_arg_t){ DNNL_ARG_SCRATCHPAD, memory[n] };
    n++;
    if (fine && e->bias) {
        fine = dnnl_memory_create(&memory[n], &e->bias_desc, engine, (void *)bias) == dnnl_success;
        args[n] = (dnnl_exec_arg_t){ DNNL_ARG_BIAS, memory[n] };
        n++;
    }
    fine = fine && dnnl_primitive_execute(e->primitive, stream, n, args) == dnnl_success;
    for (int k = 0; k < SIDES + 2; k++)
        dnnl_memory_destroy(memory[k]);
    return fine;
}

/* One slice: inputs into the layouts wanted, the primitive, the result back. */
static bool run_slice(const conv_job *job, dnnl_stream_t stream, const conv_entry *e, void *const *plain)
{
    size_t size = bytes_of(&e->scratch), offset[SIDES];
    for (int k = 0; k < SIDES; k++) {
        offset[k] = size;
        size += e->side[k].reorder && plain[k] != job->weight ? bytes_of(&e->side[k].wanted) : 0;
    }
    char *buffer = trek_block_alloc(size + 64);
    void *data[SIDES];
    bool fine = buffer != NULL;
    for (int k = 0; fine && k < SIDES; k++) {
        bool reorder = e->side[k].reorder && plain[k] != job->weight;
        data[k] = reorder ? buffer + offset[k] : plain[k];
        if (reorder && k != SIDE_RESULT)
            fine = run_reorder(stream, &e->side[k], false, plain[k], data[k]);
    }
    fine = fine && run_conv(stream, e, data, job->bias, buffer);
    if (fine && e->side[SIDE_RESULT].reorder)
        fine = run_reorder(stream, &e->side[SIDE_RESULT], true, plain[SIDE_RESULT], data[SIDE_RESULT]);
    trek_block_free(buffer);
    return fine;
}

/* What slice number i works on. */
static void slice_data(const conv_job *job, int64_t i, void **data)
{
    const trek_conv *c = job->c;
    int64_t x_image = c->channels * c->height * c->width * 4, y_plane = c->out_h * c->out_w * 4;
    int64_t filter = c->channels * c->kernel_h * c->kernel_w * 4, first = i * job->slice;
    int64_t x = job->by_filters ? 0 : first * x_image, y = first * y_plane * (job->by_filters ? 1 : c->filters);
    data[1] = job->weight;
    if (job->pass == TREK_ONEDNN_FORWARD)
        data[0] = (void *)(job->first + x), data[2] = job->result + y;
    else if (job->pass == TREK_ONEDNN_INPUT_GRAD)
        data[0] = (void *)(job->first + y), data[2] = job->result + x;
    else
        data[0] = (void *)(job->first + y), data[1] = (void *)(job->second + x),
        data[2] = job->partials + (job->by_filters ? first : i * c->filters) * filter;
}

static void run_slices(void *arg, int64_t begin, int64_t end)
{
    conv_job *job = arg;
    int64_t count = job->by_filters ? job->c->filters : job->c->images;
    int threads = omp_enter();
    dnnl_stream_t stream = NULL;
    bool fine = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
    for (int64_t i = begin; fine && i < end; i++) {
        void *data[SIDES];
        slice_data(job, i, data);
        fine = run_slice(job, stream, (i + 1) * job->slice <= count ? job->whole : job->rest, data);
    }
    if (!fine)
        job->failed = true;
    dnnl_stream_destroy(stream);
    omp_leave(threads);
}

/* Weights into the layout that both kinds of slices want. */
static bool prepare_weight(conv_job *job, void **buffer)
{
    const conv_side *side = &job->whole->side[SIDE_SECOND];
    if (job->pass == TREK_ONEDNN_WEIGHT_GRAD) /* x is second there */
        return true;
    job->weight = (void *)job->second;
    if (!side->reorder)
        return !job->rest || !job->rest->side[SIDE_SECOND].reorder;
    if (job->rest && !dnnl_memory_desc_equal(&side->wanted, &job->rest->side[SIDE_SECOND].wanted))
        return false;
    dnnl_stream_t stream = NULL;
    *buffer = trek_block_alloc(bytes_of(&side->wanted));
    int threads = omp_enter();
    bool fine = *buffer && dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success &&
                run_reorder(stream, side, false, (void *)job->second, *buffer);
    dnnl_stream_destroy(stream);
    omp_leave(threads);
    job->weight = *buffer;
    return fine;
}

static bool find_entries(conv_job *job)
{
    const trek_conv *c = job->c;
    trek_conv slice = *c;
    int64_t *sliced = job->by_filters ? &slice.filters : &slice.images, count = *sliced;
    int threads = omp_enter();
    *sliced = job->slice;
    slice.group_filters = slice.filters;
    job->whole = find_entry(&slice, c->filters, job->pass, job->bias != NULL);
    *sliced = count % job->slice;
    slice.group_filters = slice.filters;
    if (job->whole && *sliced > 0)
        job->rest = find_entry(&slice, c->filters, job->pass, job->bias != NULL);
    omp_leave(threads);
    return job->whole && (count % job->slice == 0 || job->rest);
}

/* The weight's gradient is cut along the filters where it is large beside the images: partial sums would cost more
 * than bringing x into another layout for each slice. */
static void choose_slices(conv_job *job)
{
    const trek_conv *c = job->c;
    int64_t weights = c->filters * c->channels * c->kernel_h * c->kernel_w, x = c->images * c->channels * c->height * c->width;
    job->by_filters = job->pass == TREK_ONEDNN_WEIGHT_GRAD && 4 * weights > x && c->filters >= 32;
    if (job->by_filters)
        job->slice = (c->filters / 4 + 15) / 16 * 16;
    else
        job->slice = job->pass == TREK_ONEDNN_WEIGHT_GRAD ? (c->images + 3) / 4 : (c->images + 15) / 16;
}

bool trek_onednn_conv_suits(const trek_conv *c, trek_onednn_pass pass)
{
    if (c->dtype != TREK_F32 || c->groups != 1 || c->filters < 16)
        return false;
    double work = (double)c->images * (double)c->filters * (double)(c->channels * c->kernel_h * c->kernel_w) *
                  (double)(c->out_h * c->out_w);
    if (work < 2e7 || (c->kernel_h == 1 && c->kernel_w == 1))
        return false;
    if (c->stride_h > 1 || c->stride_w > 1)
        return c->channels >= 16 || pass != TREK_ONEDNN_INPUT_GRAD;
    return c->channels >= (pass == TREK_ONEDNN_WEIGHT_GRAD ? 32 : 48);
}

trek_status trek_onednn_conv(const trek_conv *c, trek_onednn_pass pass, const void *first, const void *second, const void *bias,
                             void *result)
{
    conv_job job = { .c = c, .pass = pass, .first = first, .second = second, .bias = bias, .result = result };
    int64_t count = c->filters * c->channels * c->kernel_h * c->kernel_w;
    choose_slices(&job);
    int64_t slices = ((job.by_filters ? c->filters : c->images) + job.slice - 1) / job.slice;
    bool was_clean = trek_error_status() == TREK_OK;
    void *weight = NULL;
    bool sum = pass == TREK_ONEDNN_WEIGHT_GRAD && slices > 1 && !job.by_filters;
    bool fine = find_entries(&job) && prepare_weight(&job, &weight);
    job.partials = result;
    if (fine && sum && !(job.partials = trek_block_alloc((size_t)(slices * count) * 4)))
        fine = false;
    if (fine)
        trek_parallel(slices, 1, run_slices, &job);
    fine = fine && !job.failed;
    if (fine && sum)
        trek_conv_sum_partials(TREK_F32, result, job.partials, slices, count);
    if (sum)
        trek_block_free(job.partials);
    trek_block_free(weight);
    if (!fine && was_clean)
        trek_error_clear(); /* another way may need less memory */
    return fine ? TREK_OK : TREK_ERR_UNSUPPORTED;
}

#else
typedef int trek_onednn_is_absent; /* an empty translation unit is no C */
#endif
