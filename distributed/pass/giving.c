/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/pass/giving.h"

#include <string.h>

#include "distributed/system/system.h"
#include "distributed/team/replica.h"
#include "distributed/team/step.h"
#include "nn/safetensors.h"
#include "tensor/byte_hash.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* How long a process that has come may take before its first connection, as far as the others wait for that. */
#define COME_NS 2000000000
/* What a file may have besides parameters and the optimizer's state. */
#define HEAD_ROOM ((int64_t)1 << 20)

struct trek_giving {
    trek_state *state;
    trek_state_image image;
    trek_supply *supply;
    char *told;              /* the head, and then for each part that is told a range and its bytes */
    int64_t told_bytes;
    int *takers;             /* numbers, in the job, of those that have come */
    int n_takers;
};

/* --- giving -------------------------------------------------------------------------------------------------------------- */

/* Returns whether a part is the same in all processes until the next step is made. */
static bool lasts(const trek_step *s, const trek_state_part *part)
{
    const trek_replica *model = s->team->replicas[0].model;
    const char *optimizer = s->job.survival->state->optimizer;
    if (strncmp(part->name, optimizer, strlen(optimizer)) == 0)
        return true;
    for (int k = 0; k < model->n_params; k++)
        if (part->source == model->params[k]->data->data)
            return true;
    return false;
}

static trek_status write_told(const trek_step *s, trek_giving *x)
{
    const trek_state_image *image = &x->image;
    int64_t bytes = (int64_t)image->head.length;
    for (int k = 0; k < image->n; k++)
        bytes += lasts(s, &image->parts[k]) ? 0 : (int64_t)sizeof(trek_supply_range) + image->parts[k].bytes;
    char *at = x->told = trek_alloc((size_t)bytes);
    if (!at)
        return TREK_ERR_MEMORY;
    x->told_bytes = bytes;
    memcpy(at, image->head.data, image->head.length);
    at += image->head.length;
    for (int k = 0; k < image->n; k++) {
        const trek_state_part *part = &image->parts[k];
        const trek_supply_range range = { part->begin, part->begin + part->bytes };
        if (lasts(s, part))
            continue;
        memcpy(at, &range, sizeof range);
        memcpy(at + sizeof range, part->data, (size_t)part->bytes);
        at += sizeof range + (size_t)part->bytes;
    }
    return TREK_OK;
}

static trek_status supply(trek_giving *x, const trek_survival *survival)
{
    const trek_state_image *image = &x->image;
    struct iovec *parts = trek_calloc((size_t)image->n + 1, sizeof *parts);
    if (!parts)
        return TREK_ERR_MEMORY;
    parts[0] = (struct iovec){ image->head.data, image->head.length };
    for (int k = 0; k < image->n; k++)
        parts[k + 1] = (struct iovec){ (void *)(uintptr_t)image->parts[k].data, (size_t)image->parts[k].bytes };
    x->supply = trek_regroup_supply(survival->regroup, parts, image->n + 1);
    trek_free(parts);
    return x->supply ? TREK_OK : trek_error_status();
}

static trek_status make(trek_step *s, trek_giving *x)
{
    const trek_survival *survival = s->job.survival;
    x->state = survival->state->collect(s->team->graph, survival->state->arg);
    trek_status status = x->state ? trek_state_image_make(&x->image, x->state) : trek_error_status();
    if (status == TREK_OK)
        status = write_told(s, x);
    return status == TREK_OK ? supply(x, survival) : status;
}

trek_giving_card trek_giving_begin(trek_step *s)
{
    trek_giving_card card = { .bytes = -1, .taker = -1 };
    trek_status status = TREK_OK;
    if (!s->giving) {
        s->giving = trek_calloc(1, sizeof *s->giving);
        status = s->giving ? make(s, s->giving) : TREK_ERR_MEMORY;
    }
    if (status != TREK_OK) {
        trek_log_message(TREK_LOG_LEVEL_WARNING, "job: the state cannot be given to a process that has come: %s", trek_error());
        trek_error_clear();
        trek_giving_end(s);
        return card;
    }
    const trek_giving *x = s->giving;
    card.bytes = x->image.bytes;
    card.head = (int64_t)x->image.head.length;
    card.told = x->told_bytes;
    card.layout = trek_hash_bytes(TREK_HASH_BEGIN, x->image.head.data, x->image.head.length);
    card.port = trek_supply_port(x->supply);
    return card;
}

void trek_giving_note(trek_step *s, const trek_giving_card *all)
{
    trek_giving *x = s->giving;
    if (!x)
        return;
    trek_free(x->takers);
    x->n_takers = 0;
    x->takers = trek_calloc((size_t)s->job.processes, sizeof *x->takers);
    trek_error_clear(); /* without the list it waits in the next call of all */
    for (int p = 0; x->takers && p < s->job.processes; p++)
        if (all[p].taker >= 0)
            x->takers[x->n_takers++] = all[p].taker;
}

typedef struct taker {
    const trek_step *s;
    int number;
    int64_t until_ns;
} taker;

static bool is_gone(void *arg)
{
    const taker *t = arg;
    const trek_job *job = &t->s->job;
    bool member = false;
    for (int p = 0; p < job->processes && job->survival; p++)
        member |= trek_regroup_number(job->survival->regroup, p) == t->number;
    return !member || trek_now_ns() > t->until_ns;
}

void trek_giving_await(trek_step *s)
{
    trek_giving *x = s->giving;
    if (!x || x->n_takers == 0)
        return;
    int64_t start = trek_trace_enter("give state"), quiet = s->job.comm ? s->job.comm->deadline_ns : 0;
    for (int k = 0; k < x->n_takers; k++) {
        taker t = { s, x->takers[k], trek_now_ns() + COME_NS };
        trek_supply_await(x->supply, t.number, quiet, is_gone, &t);
    }
    trek_trace_end("give state", start, x->n_takers);
}

void trek_giving_end(trek_step *s)
{
    trek_giving *x = s->giving;
    if (!x)
        return;
    s->giving = NULL;
    trek_supply_free(&x->supply);
    trek_state_image_clear(&x->image);
    trek_state_free(&x->state);
    trek_free(x->told);
    trek_free(x->takers);
    trek_free(x);
}

/* --- taking -------------------------------------------------------------------------------------------------------------- */

void trek_taking_clear(trek_taking *taking)
{
    trek_job_file_end(&taking->file);
    trek_free(taking->missing);
    *taking = (trek_taking){ .file.fd = -1 };
}

void trek_taking_reserve(const trek_step *s, trek_taking *taking)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    const trek_optimizer *optimizer = s->twice ? NULL : s->team->replicas[0].optimizer;
    int64_t bytes = 0;
    for (int p = 0; p < arena->n_parts && !s->team->divides_params; p++) {
        bytes += arena->parts[p].count * (int64_t)trek_dtype_size(arena->parts[p].dtype);
        for (int kind = 0; kind < TREK_GATHERED && optimizer; kind++) {
            const trek_tensor *own = trek_optimizer_own(optimizer, kind, p);
            bytes += own ? own->numel * (int64_t)trek_dtype_size((trek_dtype)own->dtype) : 0;
        }
    }
    trek_job_file_reserve(&taking->file, bytes + HEAD_ROOM);
    trek_error_clear(); /* it may be enough when it is needed */
}

static trek_status fail_told(void)
{
    return trek_fail(TREK_ERR_COMM, "trainer_setup: process 0 of the job has told its state in a way that is unknown here");
}

/* Puts what was told into the file, and notes what is missing between. Parts come in the order of the file. */
static trek_status take_told(const trek_giving_card *card, const char *told, trek_taking *taking)
{
    int64_t here = card->head, at = card->head, end = card->told, room = 1;
    const int64_t size = (int64_t)sizeof(trek_supply_range);
    trek_supply_range range;
    for (int64_t k = at; k + size <= end; room++) {
        memcpy(&range, told + k, sizeof range);
        if (range.begin < 0 || range.end < range.begin || range.end - range.begin > end - k - size)
            return fail_told();
        k += size + range.end - range.begin;
    }
    taking->missing = trek_calloc((size_t)room, sizeof *taking->missing);
    if (!taking->missing)
        return TREK_ERR_MEMORY;
    memcpy(taking->file.memory, told, (size_t)at);
    for (; at + size <= end; at += size + range.end - range.begin) {
        memcpy(&range, told + at, sizeof range);
        if (range.begin < here || range.end > card->bytes)
            return fail_told();
        if (range.begin > here)
            taking->missing[taking->n_missing++] = (trek_supply_range){ here, range.begin };
        memcpy(taking->file.memory + range.begin, told + at + size, (size_t)(range.end - range.begin));
        here = range.end;
    }
    if (here < card->bytes)
        taking->missing[taking->n_missing++] = (trek_supply_range){ here, card->bytes };
    return at == end ? TREK_OK : fail_told();
}

/* It leaves the job if it cannot take the state, since the others can go on without it. */
static trek_status prepare(const trek_step *s, const trek_giving_card *all, trek_taking *taking, trek_job_file *told)
{
    trek_free(taking->missing); /* of a transfer that has failed */
    taking->missing = NULL;
    taking->n_missing = 0;
    taking->n_suppliers = 0;
    for (int p = 0; p < s->job.processes; p++)
        if (all[p].layout == all[0].layout && all[p].port > 0)
            taking->suppliers[taking->n_suppliers++] = trek_regroup_supplier(s->job.survival->regroup, p, all[p].port);
    if (all[0].head <= 0 || all[0].told < all[0].head || all[0].bytes < all[0].head)
        return fail_told();
    told->memory = trek_alloc((size_t)all[0].told);
    if (!told->memory)
        return TREK_ERR_MEMORY;
    return taking->file.fd < 0 ? trek_job_file_map(&taking->file, -1, all[0].bytes)
                               : trek_job_file_resize(&taking->file, all[0].bytes);
}

trek_status trek_giving_tell(trek_step *s, const trek_giving_card *all, trek_taking *taking)
{
    trek_job_file told = { .fd = -1, .bytes = all[0].told };
    trek_status status = taking ? prepare(s, all, taking, &told) : TREK_OK;
    if (s->job.process == 0)
        told.memory = s->giving->told;
    if (status == TREK_OK)
        status = trek_job_file_send(s->job.comm, &told, 0);
    if (status == TREK_OK && taking)
        status = take_told(&all[0], told.memory, taking);
    if (taking)
        trek_free(told.memory);
    return status;
}

trek_status trek_taking_fetch(trek_step *s, trek_taking *taking)
{
    int64_t start = trek_trace_enter("fetch state");
    const trek_supply_fetching fetching = { .ranges = taking->missing,
                                            .n_ranges = taking->n_missing,
                                            .memory = taking->file.memory,
                                            .suppliers = taking->suppliers,
                                            .n_suppliers = taking->n_suppliers,
                                            .quiet_ns = s->job.comm ? s->job.comm->deadline_ns : 0 };
    trek_status status = trek_regroup_fetch(s->job.survival->regroup, &fetching);
    trek_trace_end("fetch state", start, taking->file.bytes);
    return status;
}
