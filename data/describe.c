/* SPDX-License-Identifier: Apache-2.0 */
/* Describes in a few lines and a hash what a loader produces. Processes that divide batches have to agree on it. */
#include <inttypes.h>
#include <string.h>

#include "data/loader_internal.h"
#include "data/stream.h"
#include "tensor/byte_hash.h"
#include "tensor/tensor_internal.h"

enum { ORDER = 64 };

static uint64_t hash_tensor(const trek_tensor *x)
{
    return trek_hash_bytes(TREK_HASH_BEGIN, x->data, (size_t)x->numel * trek_dtype_size((trek_dtype)x->dtype));
}

static void describe_field(trek_text *text, const char *name, const trek_tensor *once, const trek_tensor *twice)
{
    char shape[TREK_SHAPE_TEXT];
    trek_text_format(text, "the data's field \"%s\"\t%s %s\n", name, trek_tensor_shape_text(once, shape),
                     trek_dtype_name((trek_dtype)once->dtype));
    bool comparable = once->contiguous && twice->contiguous && hash_tensor(once) == hash_tensor(twice);
        /* otherwise it is drawn again each time */
    trek_text_format(text, "the first sample's \"%s\"\t%s %016" PRIx64 "\n", name, comparable ? "hash" : "drawn again",
                     comparable ? hash_tensor(once) : 0);
}

static trek_status describe_sample(trek_dataset *dataset, uint64_t seed, trek_text *text)
{
    int n = dataset->n_fields;
    int64_t first = 0;
    trek_fetch fetch = { .indices = &first, .n = 1, .seed = seed };
    trek_tensor **out = trek_calloc(2 * (size_t)n, sizeof *out);
    trek_status status = out ? trek_dataset_fetch(dataset, &fetch, out) : trek_error_status();
    if (status == TREK_OK)
        status = trek_dataset_fetch(dataset, &fetch, out + n);
    for (int k = 0; k < n && status == TREK_OK; k++)
        describe_field(text, dataset->fields[k], out[k], out[n + k]);
    for (int k = 0; out && k < 2 * n; k++)
        trek_tensor_release(out[k]);
    trek_free(out);
    return status;
}

static trek_status describe_first(trek_dataset *dataset, uint64_t seed, trek_text *text)
{
    int n = dataset->n_fields;
    trek_tensor **out = trek_tensors_new(2 * n);
    trek_status status = out ? TREK_OK : TREK_ERR_MEMORY;
    int64_t got = 0;
    for (int turn = 0; turn < 2 && status == TREK_OK; turn++) {
        trek_stream *stream = trek_stream_open(dataset, 0, seed);
        status = stream ? trek_stream_next(stream, 1, out + turn * n, &got) : trek_error_status();
        trek_stream_close(&stream);
    }
    for (int k = 0; k < n && got == 1 && status == TREK_OK && out[k] && out[n + k]; k++)
        describe_field(text, dataset->fields[k], out[k], out[n + k]);
    if (out)
        trek_tensors_clear(out, 2 * n);
    trek_free(out);
    return status;
}

/* Another seed means another order. */
static trek_status describe_order(const trek_batch_plan *plan, trek_text *text)
{
    int64_t indices[ORDER], length = trek_sampler_length(plan->sampler), n = length < ORDER ? length : ORDER;
    uint64_t of_all = TREK_HASH_BEGIN;
    trek_status status = TREK_OK;
    for (int64_t epoch = 0; epoch < 2 && status == TREK_OK; epoch++) {
        status = trek_sampler_at(plan->sampler, epoch, 0, n, indices);
        of_all = status == TREK_OK ? trek_hash_bytes(of_all, indices, (size_t)n * sizeof *indices) : of_all;
    }
    trek_text_format(text, "the loader's sampler\t%s\n", plan->sampler->klass->name);
    trek_text_format(text, "the loader's order (sampler or seed)\thash %016" PRIx64 "\n", of_all);
    return status;
}

trek_status trek_batch_plan_describe(const trek_batch_plan *plan, trek_text *text)
{
    if (plan->whole) { /* each process reads for itself */
        trek_text_add(text, "the loader\tgives whole batches\n");
        return TREK_OK;
    }
    trek_text_format(text, "the length of the data (%s)\t%" PRId64 "\n", plan->dataset->klass->name,
                     trek_dataset_length(plan->dataset));
    trek_text_format(text, "the loader's batch_size\t%" PRId64 "\n", plan->batch_size);
    if (plan->feed) {
        trek_status status = describe_first(plan->dataset, plan->seed, text);
        return text->failed ? TREK_ERR_MEMORY : status;
    }
    trek_text_format(text, "the loader's samples of an epoch\t%" PRId64 "\n", plan->samples);
    trek_status status = describe_sample(plan->dataset, plan->seed, text);
    if (status == TREK_OK)
        status = describe_order(plan, text);
    return text->failed ? TREK_ERR_MEMORY : status;
}

uint64_t trek_batch_plan_digest(const trek_batch_plan *plan)
{
    trek_text text = { 0 };
    uint64_t digest = 0;
    if (!plan->whole && trek_batch_plan_describe(plan, &text) == TREK_OK)
        digest = trek_hash_bytes(TREK_HASH_BEGIN, text.data, text.length) | 1;
    trek_text_clear(&text);
    return digest;
}
