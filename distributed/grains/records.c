/* SPDX-License-Identifier: Apache-2.0 */
/* What is merged in the order of grains: weights, and buffers such as running statistics. Every grain of a step begins with
 * the same buffers, and leaves others; these are merged as those of as many ranks (replica/buffers.h), so that a step
 * changes them once, however many grains and passes it has. */
#include <stdlib.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/job/job_bytes.h"
#include "distributed/job/survival.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

trek_grain_record *trek_grains_record(const trek_grains *g, int64_t k)
{
    return (trek_grain_record *)(void *)(g->records + (size_t)k * g->record_bytes);
}

trek_status trek_grains_reserve(trek_grains *g, int64_t n)
{
    int64_t have = atomic_load_explicit(&g->n_records, memory_order_relaxed);
    if (have + n <= g->n_room)
        return TREK_OK;
    int64_t room = have + n > 2 * g->n_room ? have + n : 2 * g->n_room;
    char *records = trek_calloc((size_t)room, g->record_bytes);
    if (!records)
        return TREK_ERR_MEMORY;
    if (have > 0)
        memcpy(records, g->records, (size_t)have * g->record_bytes);
    trek_free(g->records);
    g->records = records;
    g->n_room = room;
    return TREK_OK;
}

trek_grain_record *trek_grains_new_record(trek_grains *g)
{
    return trek_grains_record(g, atomic_fetch_add_explicit(&g->n_records, 1, memory_order_relaxed));
}

static size_t bytes_of(const trek_tensor *x) { return (size_t)x->numel * trek_dtype_size((trek_dtype)x->dtype); }

/* Copies bytes in the order of the calling thread's work on the device, if one of both is there. */
static trek_status copy(void *to, trek_device to_device, const void *from, trek_device from_device, size_t bytes)
{
    trek_device_type type = to_device.type != TREK_CPU ? to_device.type : from_device.type;
    if (type != TREK_CPU)
        return trek_backends[type]->copy_bytes(to, to_device, from, from_device, bytes, NULL);
    memcpy(to, from, bytes);
    return TREK_OK;
}

void trek_grains_keep_buffers(const trek_grains *g, const trek_replica *replica, char *to)
{
    for (int k = 0; k < replica->n_buffers; k++) {
        const trek_tensor *x = replica->buffers[k]->data;
        copy(to + g->buffer_at[k], trek_cpu(0), x->data, x->device, bytes_of(x));
    }
}

void trek_grains_put_buffers(const trek_grains *g, const trek_replica *replica, const char *from)
{
    for (int k = 0; k < replica->n_buffers; k++) {
        trek_tensor *x = replica->buffers[k]->data;
        copy(x->data, x->device, from + g->buffer_at[k], trek_cpu(0), bytes_of(x));
        trek_tensor_bump(x);
    }
}

trek_tensor *trek_grains_copy_buffers(const trek_grains *g, const trek_replica *replica)
{
    size_t head = g->buffer_at[0];
    trek_device device = replica->buffers[0]->data->device;
    trek_tensor *bytes = trek_tensor_make(1, (int64_t[]){ (int64_t)(g->record_bytes - head) }, TREK_U8, device);
    trek_status status = bytes ? TREK_OK : trek_error_status();
    for (int k = 0; k < replica->n_buffers && status == TREK_OK; k++) {
        const trek_tensor *x = replica->buffers[k]->data;
        status = copy(bytes->data + (g->buffer_at[k] - head), device, x->data, device, bytes_of(x));
    }
    if (status == TREK_OK)
        return bytes;
    trek_tensor_release(bytes);
    return NULL;
}

trek_status trek_grains_fetch_buffers(const trek_grains *g, const trek_tensor *bytes, char *to)
{
    return copy(to + g->buffer_at[0], trek_cpu(0), bytes->data, bytes->device, (size_t)bytes->numel);
}

/* --- merging --- */

/* The records of all processes, in the order of passes and grains. */
typedef struct grain_list {
    int64_t n;
    trek_grain_record **of;
    job_bytes all;           /* their memory, with several processes */
} grain_list;

static int by_number(const void *a, const void *b)
{
    const trek_grain_record *x = *(trek_grain_record *const *)a, *y = *(trek_grain_record *const *)b;
    if (x->pass != y->pass)
        return x->pass < y->pass ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x < y ? -1 : x > y; /* of processes that have batches of their own */
}

static trek_status list_records(trek_step *s, grain_list *list)
{
    const trek_grains *g = s->grains;
    int64_t own = g->n_records;
    trek_status status = TREK_OK;
    if (g->broken)
        status = trek_fail(TREK_ERR_STATE, "graph_step: graph: some of its gradients could not be computed or summed; call "
                                           "trek_graph_zero_grad first");
    if (trek_job_has_others(&s->job))
        status = trek_job_bytes_gather(s->job.comm, g->records, own * (int64_t)g->record_bytes, status, "its grains", &list->all);
    for (int p = 0; trek_job_has_others(&s->job) && p < s->job.processes && status == TREK_OK; p++)
        list->n += list->all.lengths[p] / (int64_t)g->record_bytes;
    if (trek_job_is_alone(&s->job))
        list->n = own;
    list->of = status == TREK_OK ? trek_calloc((size_t)list->n, sizeof *list->of) : NULL;
    if (!list->of)
        return status == TREK_OK ? TREK_ERR_MEMORY : status;
    int64_t at = 0;
    for (int p = 0; trek_job_has_others(&s->job) && p < s->job.processes; p++)
        for (int64_t k = 0; k < list->all.lengths[p]; k += (int64_t)g->record_bytes)
            list->of[at++] = (trek_grain_record *)(void *)(list->all.bytes + (size_t)p * list->all.room + k);
    for (int64_t k = 0; k < own && trek_job_is_alone(&s->job); k++)
        list->of[k] = trek_grains_record(g, k);
    if (list->n > 1)
        qsort(list->of, (size_t)list->n, sizeof *list->of, by_number);
    return TREK_OK;
}

typedef struct grain_room {
    trek_buffer_space base;
    const trek_grains *grains;
    const grain_list *list;
} grain_room;

static char *copy_of(const trek_buffer_space *space, int rank, int k)
{
    const grain_room *room = (const grain_room *)space;
    return (char *)room->list->of[rank] + room->grains->buffer_at[k];
}

static trek_status merge_buffers(trek_step *s, const grain_list *list)
{
    const trek_grains *g = s->grains;
    const trek_replica *model = s->team->replicas[0].model;
    double counts[TREK_MAX_RANKS];
    if (model->n_buffers == 0)
        return TREK_OK;
    if (list->n > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_step: .grain: %lld grains in a step of a graph with buffers; at most %d are possible",
                         (long long)list->n, TREK_MAX_RANKS);
    for (int64_t k = 0; k < list->n; k++)
        counts[k] = (double)list->of[k]->rows;
    grain_room room = { { .replica = model, .n_ranks = (int)list->n, .counts = counts, .apart = true, .copy = copy_of }, g,
                        list };
    trek_buffers_merge(&room.base, 0, 1);
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_grains_put_buffers(g, s->team->replicas[r].model, (const char *)list->of[0]);
    return TREK_OK;
}

/* No grain may be lost or counted twice, whoever was to run it. */
static trek_status check_complete(const trek_grains *g, const grain_list *list)
{
    int64_t at = 0;
    for (int64_t p = 0; p < g->passes.n && g->passes.of[p].joint && list->n > 0; p++) {
        int64_t n = trek_grains_count(g, g->passes.of[p].rows);
        for (int64_t k = 0; k < n; k++, at++) {
            const trek_grain_record *record = at < list->n ? list->of[at] : NULL;
            if (!record || record->pass != p || record->number != k)
                return trek_fail(TREK_ERR_COMM, "graph_step: grain %lld of pass %lld of the step has been run by %s process",
                                 (long long)k, (long long)p, record && record->pass == p && record->number < k ? "more than one"
                                                                                                             : "no");
        }
    }
    return TREK_OK;
}

/* --- grains that died with a process --- */

typedef struct lost_grain {
    int64_t pass, number;
} lost_grain;

typedef struct lost_grains {
    lost_grain *list;
    int n, room;
} lost_grains;

/* Finds the grains that have no record. What is there twice is found by check_complete. */
static trek_status find_lost(const trek_grains *g, const grain_list *list, lost_grains *lost)
{
    int64_t at = 0;
    trek_status status = TREK_OK;
    for (int64_t pass = 0; pass < g->passes.n; pass++)
        for (int64_t k = 0; k < trek_grains_count(g, g->passes.of[pass].rows) && status == TREK_OK; k++) {
            while (at < list->n && (list->of[at]->pass < pass || (list->of[at]->pass == pass && list->of[at]->number < k)))
                at++;
            if (at < list->n && list->of[at]->pass == pass && list->of[at]->number == k)
                continue;
            status = trek_array_grow(&lost->list, &lost->room, lost->n + 1, sizeof *lost->list);
            if (status == TREK_OK)
                lost->list[lost->n++] = (lost_grain){ pass, k };
        }
    return status;
}

/* Every process takes every n-th of them. */
static trek_status run_lost(trek_step *s, const lost_grains *lost, trek_grains_run_fn run)
{
    int64_t *numbers = trek_calloc((size_t)lost->n, sizeof *numbers);
    trek_status status = numbers ? TREK_OK : TREK_ERR_MEMORY;
    for (int64_t pass = 0; pass < s->grains->passes.n && status == TREK_OK; pass++) {
        int64_t n = 0;
        for (int k = s->job.process; k < lost->n; k += s->job.processes)
            if (lost->list[k].pass == pass)
                numbers[n++] = lost->list[k].number;
        if (n > 0)
            status = run(s, pass, numbers, n);
    }
    trek_free(numbers);
    return status;
}

static void clear(grain_list *list)
{
    trek_free(list->of);
    trek_job_bytes_clear(&list->all);
    *list = (grain_list){ 0 };
}

/* Lists the records of all processes when no grain is missing any more. */
static trek_status list_all(trek_step *s, grain_list *list, trek_grains_run_fn run)
{
    trek_status status = list_records(s, list);
    for (bool again = s->job.survival != NULL; again && status == TREK_OK;) {
        lost_grains lost = { 0 };
        status = find_lost(s->grains, list, &lost);
        again = lost.n > 0;
        if (status == TREK_OK && again) {
            trek_log_message(TREK_LOG_LEVEL_INFO, "job: %d grains of step %lld are computed again", lost.n,
                             (long long)s->team->graph->settings.steps);
            clear(list);
            status = run_lost(s, &lost, run);
        }
        trek_free(lost.list);
        if (status == TREK_OK && again)
            status = list_records(s, list);
    }
    return status;
}

trek_status trek_grains_merge(trek_step *s, trek_grains_run_fn run)
{
    trek_grains *g = s->grains;
    grain_list list = { 0 };
    double weight = 0;
    trek_status status = list_all(s, &list, run);
    if (status == TREK_OK && list.n > TREK_BINNED_MOST)
        status = trek_fail(TREK_ERR_UNSUPPORTED, "graph_step: .grain: %lld grains in a step; at most %d are possible",
                           (long long)list.n, TREK_BINNED_MOST);
    if (status == TREK_OK)
        status = check_complete(g, &list);
    if (list.n > 0) /* also when a step is made again */
        trek_digests_reset(s);
    for (int64_t k = 0; k < list.n && status == TREK_OK; k++) {
        weight += list.of[k]->weight;
        trek_digests_add(g->digests, list.of[k]);
    }
    if (status == TREK_OK && list.n > 0) {
        g->factor = weight > 0 ? list.of[0]->denominator / weight : 1;
        g->pending = true;
        status = merge_buffers(s, &list);
    }
    if (trek_job_is_alone(&s->job)) /* buffers were merged in them */
        g->n_records = 0;
    clear(&list);
    return status;
}
