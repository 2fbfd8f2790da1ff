/* SPDX-License-Identifier: Apache-2.0 */
/* The digests of steps. Values have keys by parameter (or buffer) and place in it, so that a digest does not depend on how arenas
 * are laid out, nor on the ranks, each of which digests its slice.
 *
 * The file has lines "step", and before each of them the lines of its grains. Each step is written at once, so a process that is
 * killed leaves whole steps; a run that is resumed appends to it, and the last line of a step counts. Lines with "#" say how the
 * program was started, for trek-replay. */
#include "distributed/grains/digests.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/replay/replay.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/team/step.h"
#include "tensor/pages.h"
#include "tensor/trace.h"

/* Keys of values: a parameter's number, or a buffer's behind them, and the block in it. */
#define KEY(number) ((uint64_t)(number) << 40)
#define QUICK_BYTES ((int64_t)1 << 19) /* digested in some 30 us */

trek_digest trek_digests_samples(const trek_batch *grain)
{
    trek_digest digest = { { 0, 0 } };
    for (int64_t k = 0; k < grain->n; k++) {
        int64_t index = grain->indices[k];
        trek_digest_add(&digest, (uint64_t)(grain->first + k), &index, sizeof index);
    }
    return digest;
}

/* --- on GPUs --- */

/* Spans that a device adds to a digest in its memory. */
typedef struct span_list {
    const trek_backend *backend;
    trek_device device;
    trek_digest *result;
    trek_digest_span span[TREK_DIGEST_SPANS];
    int n;
} span_list;

static trek_status flush(span_list *list)
{
    trek_status status = list->n > 0 ? list->backend->digest(list->device, list->span, list->n, list->result) : TREK_OK;
    list->n = 0;
    return status;
}

static trek_status add_span(span_list *list, trek_digest_span span)
{
    trek_status status = list->n == TREK_DIGEST_SPANS ? flush(list) : TREK_OK;
    list->span[list->n++] = span;
    return status;
}

static span_list spans_for(const trek_backend *backend, trek_device device, trek_tensor *result, int number)
{
    return (span_list){ .backend = backend, .device = device, .result = (trek_digest *)(void *)result->data + number };
}

/* --- gradients --- */

/* Adds elements [begin, end) of a part that belong to a segment. A segment without gradients is 0; -0 counts as 0, because which
 * of them a gradient without any term is depends on what the rank has run before. */
static void add_segment(trek_digest *digest, const trek_arena *arena, const trek_arena_segment *segment, int64_t begin,
                        int64_t end)
{
    const trek_arena_part *part = &arena->parts[segment->part];
    int64_t size = (int64_t)trek_dtype_size(part->wide), most = TREK_DIGEST_BLOCK / size;
    int64_t first = segment->offset > begin ? segment->offset : begin, last = segment->offset + segment->count;
    last = last < end ? last : end;
    if (first < last)
        trek_digest_add_floats(digest, KEY(segment->index) + (uint64_t)((first - segment->offset) / most),
                               part->grads->data + first * size, last - first, (size_t)size);
}

/* The same on a GPU. */
static trek_status add_segment_span(span_list *list, const trek_arena *arena, const trek_arena_segment *segment, int64_t begin,
                                    int64_t end)
{
    const trek_arena_part *part = &arena->parts[segment->part];
    int64_t size = (int64_t)trek_dtype_size(part->wide), last = segment->offset + segment->count;
    int64_t first = segment->offset > begin ? segment->offset : begin;
    last = last < end ? last : end;
    if (first >= last)
        return TREK_OK;
    return add_span(list,
                    (trek_digest_span){ part->grads->data + first * size, (last - first) * size,
                                        KEY(segment->index) + (uint64_t)((first - segment->offset) * size / TREK_DIGEST_BLOCK),
                                        (int)size });
}

static trek_digest gradients_on_device(const trek_arena *arena)
{
    trek_digest digest = { { 0, 0 } };
    trek_tensor *result = trek_tensor_zeros(trek_dims(2), TREK_I64, arena->device);
    trek_status status = result ? TREK_OK : trek_error_status();
    span_list list = { .n = 0 };
    if (status == TREK_OK)
        list = spans_for(arena->backend, arena->device, result, 0);
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++)
        status = add_segment_span(&list, arena, &arena->segments[k], 0, INT64_MAX);
    if (status == TREK_OK)
        status = flush(&list);
    if (status == TREK_OK)
        arena->backend->copy_bytes(&digest, trek_cpu(0), result->data, arena->device, sizeof digest, NULL);
    trek_tensor_release(result);
    return digest;
}

trek_digest trek_digests_gradients(const trek_arena *arena)
{
    trek_digest digest = { { 0, 0 } };
    int64_t start = trek_trace_enter("digest");
    if (!arena->backend->host_accessible)
        digest = gradients_on_device(arena);
    else
        for (int k = 0; k < arena->n_segments; k++)
            add_segment(&digest, arena, &arena->segments[k], 0, INT64_MAX);
    trek_trace_end("digest", start, 0);
    return digest;
}

void trek_digests_read(trek_step *s, int rank, int part, int64_t begin, int64_t end)
{
    const trek_digests *d = s->grains->digests;
    const trek_arena *arena = s->team->replicas[d->on_device || s->team->divides_grads ? rank : 0].arena;
    if (d->on_device) {
        span_list list = spans_for(arena->backend, arena->device, d->on_device[rank], 0);
        trek_status status = TREK_OK;
        for (int k = 0; k < arena->n_segments && status == TREK_OK; k++)
            if (arena->segments[k].part == part)
                status = add_segment_span(&list, arena, &arena->segments[k], begin, end);
        if (status == TREK_OK)
            flush(&list);
        return;
    }
    for (int k = 0; k < arena->n_segments; k++)
        if (arena->segments[k].part == part)
            add_segment(&s->grains->digests->gradients[rank], arena, &arena->segments[k], begin, end);
}

/* Brings both digests of a rank to the host. */
static trek_status fetch(trek_digests *d, int rank, const trek_arena *arena)
{
    trek_digest both[2];
    trek_status status = arena->backend->copy_bytes(both, trek_cpu(0), d->on_device[rank]->data, arena->device, sizeof both,
                                                    NULL);
    if (status == TREK_OK) {
        d->gradients[rank] = both[0];
        d->parameters[rank] = both[1];
    }
    return status;
}

trek_status trek_digests_fetch(trek_step *s, int rank)
{
    trek_digests *d = s->grains->digests;
    return d->on_device ? fetch(d, rank, s->team->replicas[rank].arena) : TREK_OK;
}

/* --- a step --- */

void trek_digests_reset(trek_step *s)
{
    trek_digests *d = s->grains->digests;
    if (!d)
        return;
    memset(d->gradients, 0, (size_t)s->team->local_ranks * sizeof *d->gradients);
    memset(d->parameters, 0, (size_t)s->team->local_ranks * sizeof *d->parameters);
    for (int r = 0; r < s->team->local_ranks && d->on_device; r++) {
        trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { d->on_device[r] } };
        trek_op_run(&fill);
    }
    d->samples = (trek_digest){ { 0, 0 } };
    d->loss = d->weight = 0;
    trek_text_clear(&d->grains);
}

static void add_hex(trek_text *text, const char *name, const uint64_t *half)
{
    trek_text_format(text, " %s %016" PRIx64 "%016" PRIx64, name, half[0], half[1]);
}

static void add_loss(trek_text *text, double loss, double weight)
{
    char number[40];
    trek_text_format(text, " loss %s", trek_text_number(weight > 0 ? loss / weight : 0, number));
    trek_text_format(text, " weight %s\n", trek_text_number(weight, number));
}

void trek_digests_add(trek_digests *d, const trek_grain_record *record)
{
    trek_digest_join(&d->samples, &record->samples);
    d->loss += record->loss;
    d->weight += record->weight;
    if (!d->of_grains)
        return;
    trek_text_format(&d->grains, "grain %" PRId64 " pass %" PRId64 " rows %" PRId64, record->number, record->pass, record->rows);
    add_hex(&d->grains, "gradients", record->gradients.half);
    add_hex(&d->grains, "samples", record->samples.half);
    add_loss(&d->grains, record->loss, record->weight);
}

/* The blocks [begin, end) of a value that a rank digests: a slice of each value, or, since divided parameters are gathered as a
 * whole, every so many values, of all ranks of the job. */
static void slice_of(const trek_step *s, int rank, int value, size_t blocks, size_t *begin, size_t *end)
{
    size_t ranks = (size_t)s->team->local_ranks;
    bool own = value % s->job.world_size == s->job.first_rank + rank;
    *begin = s->team->divides_params ? 0 : blocks * (size_t)rank / ranks;
    *end = s->team->divides_params ? (own ? blocks : 0) : blocks * ((size_t)rank + 1) / ranks;
}

/* Forgets what a GPU has digested of parameters, in the order of its work. */
static trek_status forget_values(const trek_digests *d, int rank)
{
    trek_tensor *values = trek_tensor_make_part(d->on_device[rank], sizeof(trek_digest), trek_dims(2), TREK_I64);
    trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { values } };
    trek_status status = values ? trek_op_run(&fill) : trek_error_status();
    trek_tensor_release(values);
    return status;
}

/* Digests a rank's slice of the parameters and buffers. */
static trek_status digest_values(int rank, void *arg)
{
    trek_step *s = arg;
    trek_digests *d = s->grains->digests;
    const rank_replica *own = &s->team->replicas[d->on_device ? rank : 0];
    const trek_replica *model = own->model, *params = s->team->divides_params ? s->team->replicas[rank].model : model;
    trek_digest *digest = &d->parameters[rank];
    trek_status status = TREK_OK;
    span_list list = { .n = 0 };
    if (d->on_device)
        list = spans_for(own->arena->backend, own->arena->device, d->on_device[rank], 1);
    if (d->on_device && s->twice) /* it may be made again */
        status = forget_values(d, rank);
    for (int k = 0; k < model->n_params + model->n_buffers && status == TREK_OK; k++) {
        trek_tensor *x = k < model->n_params ? params->params[k]->data : model->buffers[k - model->n_params]->data;
        size_t bytes = (size_t)x->numel * trek_dtype_size((trek_dtype)x->dtype), begin, end;
        slice_of(s, rank, k, (bytes + TREK_DIGEST_BLOCK - 1) / TREK_DIGEST_BLOCK, &begin, &end);
        size_t last = end * TREK_DIGEST_BLOCK < bytes ? end * TREK_DIGEST_BLOCK : bytes;
        size_t size = last - begin * TREK_DIGEST_BLOCK;
        trek_tensor *read = begin < end && trek_tensor_is_kept(x) ? trek_tensor_clone(x) : trek_tensor_retain(x);
        const char *from = read ? (const char *)read->data + begin * TREK_DIGEST_BLOCK : NULL;
        status = read ? status : trek_error_status();
        if (begin < end && d->on_device && status == TREK_OK)
            status = add_span(&list, (trek_digest_span){ from, (int64_t)size, KEY(k) + begin, 0 });
        else if (begin < end && status == TREK_OK)
            trek_digest_add(digest, KEY(k) + begin, from, size);
        if (read != x && status == TREK_OK) /* its memory is used again by what follows on the device */
            status = flush(&list);
        trek_tensor_release(read);
    }
    if (status == TREK_OK)
        status = flush(&list);
    return status == TREK_OK && d->on_device ? fetch(d, rank, own->arena) : status;
}

/* --- the file --- */

/* Adds how the program was started. */
static void add_start(trek_text *text, const trek_step *s)
{
    char bytes[4096], path[4096];
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (file)
        fclose(file);
    trek_text_format(text, "# trek digests 1\n# grain %" PRId64 "\n# ranks %d\n", s->grains->size, s->job.world_size);
    path[length > 0 ? length : 0] = '\0';
    if (length > 0 && !strchr(path, '\n'))
        trek_text_format(text, "# program %s\n", path);
    if (getcwd(path, sizeof path) && !strchr(path, '\n'))
        trek_text_format(text, "# folder %s\n", path);
    for (size_t at = n > 0 ? strlen(bytes) + 1 : 0; at < n && n < sizeof bytes; at += strlen(bytes + at) + 1)
        if (!strchr(bytes + at, '\n'))
            trek_text_format(text, "# argument %s\n", bytes + at);
}

static bool write_text(int file, const trek_text *text)
{
    for (size_t at = 0; at < text->length;) {
        ssize_t done = write(file, text->data + at, text->length - at);
        if (done < 0 && errno != EINTR)
            return false;
        at += done > 0 ? (size_t)done : 0;
    }
    return true;
}

/* The lines of a step and its grains. */
static trek_text lines_of(trek_digests *d, int64_t step, const trek_step_digest *digest)
{
    trek_text text = d->grains;
    d->grains = (trek_text){ 0 };
    trek_text_format(&text, "step %" PRId64, step);
    add_hex(&text, "parameters", digest->parameters);
    add_hex(&text, "gradients", digest->gradients);
    add_hex(&text, "samples", digest->samples);
    add_loss(&text, d->loss, d->weight);
    return text;
}

/* The step is made, so a file that cannot be written is no reason to fail. */
static void write_step(const trek_step *s, trek_digests *d, const trek_text *lines)
{
    trek_text text = { 0 };
    if (d->file < 0 && (d->file = open(d->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) >= 0)
        add_start(&text, s);
    trek_text_bytes(&text, lines->data ? lines->data : "", lines->length);
    bool complete = !text.failed && !lines->failed;
    d->failed = !complete || d->file < 0 || !write_text(d->file, &text);
    if (d->failed)
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "graph_step: .digests: %s cannot be written: %s; no further step is written to it", d->path,
                         complete ? strerror(errno) : "no memory");
    trek_text_clear(&text);
}

/* Gives the lines of a step to whoever wants them. */
static trek_status tell(const trek_step *s, trek_digests *d, int64_t step, const trek_step_digest *digest)
{
    trek_text lines = lines_of(d, step, digest);
    trek_status status = TREK_OK;
    if (d->replay)
        status = trek_replay_compare(d->replay, step, lines.data ? lines.data : "");
    else if (!d->failed && s->job.process == 0)
        write_step(s, d, &lines);
    trek_text_clear(&lines);
    return status;
}

/* Whether waking the other ranks would take longer than what they do. */
static bool is_quick(const trek_step *s)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    int64_t bytes = 0;
    for (int p = 0; p < arena->n_parts; p++)
        bytes += arena->parts[p].count * (int64_t)trek_dtype_size(arena->parts[p].dtype);
    return s->team->on_host && bytes < QUICK_BYTES;
}

/* Adds up a digest of what is divided among the processes. */
static trek_status join_processes(const trek_step *s, trek_digest *digest)
{
    trek_digest mine = *digest, all[TREK_MAX_RANKS];
    if (trek_job_is_alone(&s->job))
        return TREK_OK;
    trek_status status = trek_comm_gather_bytes(s->job.comm, &mine, sizeof mine, all);
    *digest = (trek_digest){ { 0, 0 } };
    for (int p = 0; p < s->job.processes && status == TREK_OK; p++)
        trek_digest_join(digest, &all[p]);
    return status;
}

trek_status trek_digests_share(trek_step *s)
{
    trek_digests *d = s->grains->digests;
    d->shared = (trek_digest){ { 0, 0 } };
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_digest_join(&d->shared, &d->gradients[r]);
    return join_processes(s, &d->shared);
}

trek_status trek_digests_values(trek_step *s)
{
    trek_digests *d = s->grains->digests;
    int64_t step = s->team->graph->settings.steps + 1, start = trek_trace_enter("digest");
    if (s->team->on_host) /* it may be made again */
        memset(d->parameters, 0, (size_t)s->team->local_ranks * sizeof *d->parameters);
    trek_status status = is_quick(s) ? TREK_OK : trek_ranks_call(s->team->ranks, digest_values, s);
    for (int r = 0; r < s->team->local_ranks && is_quick(s) && status == TREK_OK; r++)
        status = digest_values(r, s);
    d->values = (trek_digest){ { 0, 0 } };
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_digest_join(&d->values, &d->parameters[r]);
    if (s->team->divides_params)
        status = trek_replica_agree(s->job.comm, status, "graph_step");
    if (status == TREK_OK && s->team->divides_params)
        status = join_processes(s, &d->values);
    trek_trace_end("digest", start, step);
    return status;
}

trek_status trek_digests_leave(trek_step *s)
{
    trek_digests *d = s->grains->digests;
    int64_t step = s->team->graph->settings.steps + 1;
    trek_digest gradients = { { 0, 0 } };
    bool known = s->twice && s->team->divides_params;
    trek_status status = known ? TREK_OK : trek_digests_values(s);
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_digest_join(&gradients, &d->gradients[r]);
    if (s->team->divides_grads)
        gradients = d->shared;
    trek_step_digest digest = { .parameters = { d->values.half[0], d->values.half[1] },
                                .gradients = { gradients.half[0], gradients.half[1] },
                                .samples = { d->samples.half[0], d->samples.half[1] },
                                .loss = d->weight > 0 ? d->loss / d->weight : 0, .weight = d->weight };
    d->steps[step % TREK_DIGESTS_KEPT] = step;
    d->of[step % TREK_DIGESTS_KEPT] = digest;
    return status == TREK_OK && d->of_grains ? tell(s, d, step, &digest) : status;
}

bool trek_digests_find(const trek_step *s, int64_t step, trek_step_digest *digest)
{
    const trek_digests *d = s->grains->digests;
    if (step < 1 || d->steps[step % TREK_DIGESTS_KEPT] != step)
        return false;
    *digest = d->of[step % TREK_DIGESTS_KEPT];
    return true;
}

int trek_grains_replayed_ranks(const trek_step *s)
{
    const trek_digests *d = s && s->grains ? s->grains->digests : NULL;
    return d && d->replay ? trek_replay_ranks(d->replay) : 0;
}

/* --- beginning and end --- */

static trek_status make_on_device(const trek_step *s, trek_digests *d)
{
    d->on_device = trek_calloc((size_t)s->team->local_ranks, sizeof *d->on_device);
    for (int r = 0; r < s->team->local_ranks && d->on_device; r++)
        if (!(d->on_device[r] = trek_tensor_zeros(trek_dims(4), TREK_I64, s->team->replicas[r].arena->device)))
            return trek_error_status();
    return d->on_device ? TREK_OK : TREK_ERR_MEMORY;
}

trek_status trek_digests_make(trek_step *s, const char *path)
{
    trek_digests *d = s->grains->digests = trek_calloc(1, sizeof *d);
    if (!d)
        return TREK_ERR_MEMORY;
    d->file = -1;
    if (trek_replay_asked(NULL) && !(d->replay = trek_replay_new(path)))
        return trek_error_status();
    d->path = path && !d->replay ? trek_strdup(path) : NULL;
    d->of_grains = path || d->replay;
    d->gradients = trek_calloc((size_t)s->team->local_ranks, sizeof *d->gradients);
    d->parameters = trek_calloc((size_t)s->team->local_ranks, sizeof *d->parameters);
    if (!d->gradients || !d->parameters || (path && !d->path && !d->replay))
        return TREK_ERR_MEMORY;
    return s->team->on_host ? TREK_OK : make_on_device(s, d);
}

void trek_digests_free(trek_step *s)
{
    trek_digests *d = s->grains->digests;
    if (!d)
        return;
    if (d->file >= 0)
        close(d->file);
    for (int r = 0; r < s->team->local_ranks && d->on_device; r++)
        trek_tensor_release(d->on_device[r]);
    trek_free(d->on_device);
    trek_replay_free(&d->replay);
    trek_text_clear(&d->grains);
    trek_free(d->path);
    trek_free(d->gradients);
    trek_free(d->parameters);
    trek_free(d);
    s->grains->digests = NULL;
}
