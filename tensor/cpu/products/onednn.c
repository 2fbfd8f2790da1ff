/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by oneDNN. Its primitives are made for slices of the batch and run on trek's own threads, with one
 * thread each; oneDNN's own pool, which is OpenMP's, never starts a thread. Slices depend only on the batch, so that
 * results do not depend on the number of threads. */
#include "tensor/cpu/products/onednn_entry.h"

#ifdef TREK_ONEDNN_CONV

#include <stdatomic.h>

/* Functions of the OpenMP library that oneDNN uses, if it does. They affect only the calling thread. */
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

typedef struct conv_job {
    const trek_conv *c;
    trek_onednn_pass pass;
    const conv_entry *whole, *rest;   /* for slices of `slice` images (or filters), and for a shorter last one */
    int64_t slice;
    bool by_filters, winograd, last;
    const char *first, *second, *bias;
    char *result, *partials;
    void *weight;                     /* in the requested layout, reordered once; NULL if it is the result */
    atomic_bool failed, not_finite;   /* not_finite: winograd got such a result */
} conv_job;

static size_t bytes_of(const dnnl_memory_desc_t *desc) { return (dnnl_memory_desc_get_size(desc) + 63) / 64 * 64; }

/* Runs a reorder between two buffers. */
static bool run_reorder(dnnl_stream_t stream, const conv_side *s, bool result, void *plain, void *wanted)
{
    dnnl_memory_t from = NULL, to = NULL;
    bool fine = dnnl_memory_create(&from, result ? &s->wanted : &s->plain, trek_onednn_engine,
                                   result ? wanted : plain) == dnnl_success &&
                dnnl_memory_create(&to, result ? &s->plain : &s->wanted, trek_onednn_engine,
                                   result ? plain : wanted) == dnnl_success;
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
        fine = dnnl_memory_create(&memory[n], &e->side[n].wanted, trek_onednn_engine, data[n]) == dnnl_success;
        args[n] = (dnnl_exec_arg_t){ names[e->pass][n], memory[n] };
    }
    fine = fine && dnnl_memory_create(&memory[n], &e->scratch, trek_onednn_engine, scratch) == dnnl_success;
    args[n] = (dnnl_exec_arg_t){ DNNL_ARG_SCRATCHPAD, memory[n] };
    n++;
    if (fine && e->bias) {
        fine = dnnl_memory_create(&memory[n], &e->bias_desc, trek_onednn_engine, (void *)bias) == dnnl_success;
        args[n] = (dnnl_exec_arg_t){ DNNL_ARG_BIAS, memory[n] };
        n++;
    }
    fine = fine && dnnl_primitive_execute(e->primitive, stream, n, args) == dnnl_success;
    for (int k = 0; k < SIDES + 2; k++)
        dnnl_memory_destroy(memory[k]);
    return fine;
}

/* Winograd's sums spread values that are not finite over the tile, and turn Inf into NaN. Bits are tested, which
 * raises no floating-point exception: an exponent of ones carries into the sign. */
static bool all_finite(const uint32_t *bits, size_t count)
{
    uint32_t carried = 0;
    for (size_t i = 0; i < count; i++)
        carried |= (bits[i] & 0x7fffffffu) + 0x00800000u;
    return !(carried >> 31);
}

/* Runs one slice: converts inputs to the layouts wanted, runs the primitive, converts the result back. */
static bool run_slice(conv_job *job, dnnl_stream_t stream, const conv_entry *e, void *const *plain)
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
    if (fine && e->winograd && !all_finite(data[SIDE_RESULT], dnnl_memory_desc_get_size(&e->side[SIDE_RESULT].wanted) / 4))
        job->not_finite = true;
    if (fine && e->side[SIDE_RESULT].reorder)
        fine = run_reorder(stream, &e->side[SIDE_RESULT], true, plain[SIDE_RESULT], data[SIDE_RESULT]);
    trek_block_free(buffer);
    return fine;
}

/* Gets the data of slice number i. */
static void slice_data(const conv_job *job, int64_t i, void **data)
{
    const trek_conv *c = job->c;
    int64_t operand = (int64_t)trek_dtype_size(c->dtype), result = (int64_t)trek_dtype_size(c->result), first = i * job->slice;
    int64_t x = (job->by_filters ? 0 : first * c->channels * c->height * c->width) *
                (job->pass == TREK_ONEDNN_INPUT_GRAD ? result : operand);
    int64_t plane = c->out_h * c->out_w;
    int64_t y = first * (!job->by_filters ? plane * c->filters : job->last ? 1 : plane) *
                (job->pass == TREK_ONEDNN_FORWARD ? result : operand);
    int64_t filter = c->channels * c->kernel_h * c->kernel_w * result;
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
    bool fine = dnnl_stream_create(&stream, trek_onednn_engine, dnnl_stream_default_flags) == dnnl_success;
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

/* Converts weights to the layout that both kinds of slices use. */
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
    bool fine = *buffer && dnnl_stream_create(&stream, trek_onednn_engine, dnnl_stream_default_flags) == dnnl_success &&
                run_reorder(stream, side, false, (void *)job->second, *buffer);
    dnnl_stream_destroy(stream);
    omp_leave(threads);
    job->weight = *buffer;
    return fine;
}

static bool find_entries(conv_job *job)
{
    const trek_conv *c = job->c;
    conv_entry wanted = { .key = *c, .y_filters = c->filters, .pass = job->pass, .bias = job->bias, .winograd = job->winograd,
                          .last = job->last };
    int64_t *sliced = job->by_filters ? &wanted.key.filters : &wanted.key.images, count = *sliced;
    int threads = omp_enter();
    *sliced = job->slice;
    wanted.key.group_filters = wanted.key.filters;
    job->whole = trek_onednn_entry(&wanted);
    *sliced = count % job->slice;
    wanted.key.group_filters = wanted.key.filters;
    if (job->whole && *sliced > 0)
        job->rest = trek_onednn_entry(&wanted);
    omp_leave(threads);
    return job->whole && (count % job->slice == 0 || job->rest);
}

/* Returns whether Winograd's method (Lavin and Gray 2016; tiles of 4 x 4) is faster for slices of that many images:
 * it has half the work for each position, and transforms each kernel once. Measured in ns for a pair of channels: 22
 * and 0.055 for each position, compared with 0.1. */
static bool winograd_suits(const trek_conv *c, trek_onednn_pass pass, int64_t images)
{
    bool shape = c->kernel_h == 3 && c->kernel_w == 3 && c->stride_h == 1 && c->stride_w == 1 && c->dilation_h == 1 &&
                 c->dilation_w == 1 && c->pad_h <= 1 && c->pad_w <= 1;
    if (!shape || c->dtype != TREK_F32 || c->channels < 32 || c->filters < 32 || c->channels % 16 || c->filters % 16)
        return false;
    double places = (double)(images * c->out_h * c->out_w),
        tiles = (double)(images * ((c->out_h + 3) / 4) * ((c->out_w + 3) / 4));
    return 22 + 0.055 * 16 * tiles < (pass == TREK_ONEDNN_WEIGHT_GRAD ? 0.11 : 0.09) * places;
}

/* Chooses about sixteen slices; fewer (but at least four) if Winograd's method is only worth it for larger ones. The
 * weight's gradient is divided along the filters if it is large compared with the images: partial sums would cost
 * more than converting x for each slice. */
static void choose_slices(conv_job *job, bool winograd)
{
    const trek_conv *c = job->c;
    int64_t weights = c->filters * c->channels * c->kernel_h * c->kernel_w, x = c->images * c->channels * c->height * c->width;
    int64_t quarter = (c->images + 3) / 4, sixteenth = (c->images + 15) / 16, enough = 4096 / (c->out_h * c->out_w) + 1;
    job->winograd = winograd && winograd_suits(c, job->pass, quarter);
    if (job->pass == TREK_ONEDNN_WEIGHT_GRAD) {
        job->by_filters = !job->winograd && 4 * weights > x && c->filters >= 32;
        job->winograd |= winograd && job->by_filters && winograd_suits(c, job->pass, c->images);
        job->slice = job->by_filters ? (c->filters / 4 + 15) / 16 * 16 : quarter;
    } else {
        enough = enough < quarter ? enough : quarter;
        job->slice = job->winograd && enough > sixteenth ? enough : weights > 1 << 17 ? (c->images + 7) / 8 : sixteenth;
    }
}

static bool direct_suits(const trek_conv *c, trek_onednn_pass pass)
{
    if (c->stride_h > 1 || c->stride_w > 1)
        return c->channels >= 16 || pass != TREK_ONEDNN_INPUT_GRAD;
    if (c->dtype == TREK_BF16)
        return c->channels >= 16;
    return c->channels >= (pass == TREK_ONEDNN_WEIGHT_GRAD ? 32 : 48);
}

/* Returns whether oneDNN has the dtype, and whether there is enough work. */
static bool is_worth(const trek_conv *c, double least)
{
    /* in some positions the kernel lies wholly in the padding: for bf16, oneDNN 2.6 reads pixels there */
    bool outside = c->pad_h > (c->kernel_h - 1) * c->dilation_h || c->pad_w > (c->kernel_w - 1) * c->dilation_w;
    if (c->dtype == TREK_F64 || outside || c->groups != 1 || c->filters < 16)
        return false;
    double work = (double)c->images * (double)c->filters * (double)(c->channels * c->kernel_h * c->kernel_w) *
                  (double)(c->out_h * c->out_w);
    return work >= least;
}

bool trek_onednn_conv_suits_last(const trek_conv *c) { return is_worth(c, 2e6) && c->channels >= 16; }

bool trek_onednn_conv_suits(const trek_conv *c, trek_onednn_pass pass)
{
    if (!is_worth(c, 2e7) || (c->kernel_h == 1 && c->kernel_w == 1))
        return false;
    return direct_suits(c, pass) || winograd_suits(c, pass, (c->images + 3) / 4);
}

/* Returns UNSUPPORTED if oneDNN cannot do it, or if Winograd's method met values that are not finite. */
static trek_status run_job(conv_job *job)
{
    const trek_conv *c = job->c;
    int64_t count = c->filters * c->channels * c->kernel_h * c->kernel_w;
    int64_t slices = ((job->by_filters ? c->filters : c->images) + job->slice - 1) / job->slice;
    bool was_clean = trek_error_status() == TREK_OK;
    void *weight = NULL, *partials = NULL;
    bool sum = job->pass == TREK_ONEDNN_WEIGHT_GRAD && slices > 1 && !job->by_filters;
    bool fine = find_entries(job) && prepare_weight(job, &weight);
    if (fine && sum)
        fine = (partials = trek_block_alloc((size_t)(slices * count) * 4)) != NULL;
    job->partials = sum ? partials : job->result;
    if (fine)
        trek_parallel(slices, 1, run_slices, job);
    fine = fine && !job->failed && !job->not_finite;
    if (fine && sum)
        trek_conv_sum_partials(TREK_F32, job->result, job->partials, slices, count);
    trek_block_free(partials);
    trek_block_free(weight);
    if (!fine && was_clean)
        trek_error_clear(); /* another method may need less memory */
    return fine ? TREK_OK : TREK_ERR_UNSUPPORTED;
}

trek_status trek_onednn_conv(const trek_conv *c, trek_onednn_pass pass, bool last, const void *first, const void *second,
                             const void *bias, void *result)
{
    for (int winograd = 1; winograd >= 0; winograd--) {
        conv_job job = { .c = c, .pass = pass, .last = last, .first = first, .second = second, .bias = bias, .result = result };
        choose_slices(&job, winograd);
        if ((job.winograd || (!winograd && (last || direct_suits(c, pass)))) && run_job(&job) == TREK_OK)
            return TREK_OK;
    }
    return TREK_ERR_UNSUPPORTED;
}

#else
typedef int trek_onednn_is_absent; /* C does not allow an empty translation unit */
#endif
