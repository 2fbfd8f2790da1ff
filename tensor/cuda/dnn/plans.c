/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/dnn/plans.h"

#include "tensor/cuda/paths.h"

#ifdef TREK_HAVE_CUDNN
#include <pthread.h>
#include <string.h>

enum { PLANS = 256, TENSORS = 32 }; /* kept by a queue (a ResNet-152 has about 120); addresses of a run */

typedef struct trek_dnn_plan {
    const trek_dnn_sort *sort;
    char key[TREK_DNN_KEY];
    trek_dnn_graph graph;
    const char *why;            /* why it is refused, or NULL */
    bool captured;              /* a captured graph uses what it has loaded, so it stays */
    struct trek_dnn_plan *next; /* ordered by last use, the latest first */
} trek_dnn_plan;

static const char met_late[] = "it was first met while a step was captured, which cannot wait for a plan";

/* A key that was first used in a capture. */
typedef struct late_key {
    const trek_dnn_sort *sort;
    char key[TREK_DNN_KEY];
    struct late_key *next;
} late_key;
static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;
static late_key *late;

static bool is_late(const trek_dnn_sort *sort, const void *key, bool capturing)
{
    pthread_mutex_lock(&late_lock);
    late_key *k = late;
    while (k && (k->sort != sort || memcmp(k->key, key, sort->key_size) != 0))
        k = k->next;
    trek_status before = trek_error_status();
    late_key *added = !k && capturing ? trek_alloc(sizeof *added) : NULL;
    if (added) {
        added->sort = sort;
        memcpy(added->key, key, sort->key_size);
        added->next = late;
        late = added;
    } else if (before == TREK_OK) {
        trek_error_clear();
    }
    pthread_mutex_unlock(&late_lock);
    return k || capturing;
}

static void drop_oldest(trek_dnn_plan **at)
{
    trek_dnn_plan **oldest = NULL;
    int count = 0;
    for (; *at; at = &(*at)->next) {
        oldest = !(*at)->captured ? at : oldest;
        count++;
    }
    if (count <= PLANS || !oldest)
        return;
    trek_dnn_plan *plan = *oldest;
    *oldest = plan->next;
    trek_dnn_graph_free(&plan->graph);
    trek_free(plan);
}

static trek_dnn_plan *make_plan(trek_dnn_queue *own, const trek_dnn_sort *sort, const void *key, bool capturing)
{
    trek_dnn_plan *plan = trek_calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->sort = sort;
    memcpy(plan->key, key, sort->key_size);
    plan->why = is_late(sort, key, capturing) ? met_late : NULL;
    if (!plan->why) {
        sort->compose(&plan->graph, key);
        if (!trek_dnn_graph_plan(&plan->graph, own->handle, NULL, sort->workspace_limit))
            plan->why = plan->graph.why;
    }
    if (plan->why)
        trek_dnn_graph_free(&plan->graph);
    return plan;
}

/* Returns NULL if there is no memory. */
static trek_dnn_plan *plan_of(trek_dnn_queue *own, const trek_dnn_sort *sort, const void *key, bool capturing)
{
    trek_dnn_plan **first = (trek_dnn_plan **)&own->plans, *plan = NULL;
    for (trek_dnn_plan **at = first; *at && !plan; at = plan ? at : &(*at)->next)
        if ((*at)->sort == sort && memcmp((*at)->key, key, sort->key_size) == 0) {
            plan = *at;
            *at = plan->next;
        }
    if (!plan)
        plan = make_plan(own, sort, key, capturing);
    if (!plan)
        return NULL;
    plan->captured |= capturing;
    plan->next = *first;
    *first = plan;
    drop_oldest(&plan->next);
    return plan;
}

trek_status trek_dnn_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_dnn_sort *sort, const void *key,
                         void *const *addresses, int n)
{
    trek_dnn_queue *own = trek_dnn_queue_of(queue);
    if (!own) {
        if (queue->capture)
            is_late(sort, key, true);
        return trek_dnn_refuse(queue);
    }
    trek_dnn_plan *plan = plan_of(own, sort, key, queue->capture != NULL);
    if (!plan)
        return TREK_ERR_MEMORY;
    if (plan->why)
        return trek_cuda_refuse(plan->why);
    int64_t numbers[TENSORS];
    void *there[TENSORS];
    int given = 0;
    for (int k = 0; k < n; k++)
        if (addresses[k]) {
            numbers[given] = k;
            there[given++] = addresses[k];
        }
    trek_cuda_scratch workspace = { 0 };
    trek_status status = trek_cuda_scratch_take(queue, plan->graph.workspace, &workspace);
    if (status != TREK_OK)
        return status;
    cudnnStatus_t result = trek_dnn_graph_run(&plan->graph, own->handle, given, numbers, there, workspace.data);
    trek_cuda_scratch_give(queue, &workspace);
    if (!trek_dnn_fine(result))
        return trek_op_fail(call, TREK_ERR_CUDA, "cuDNN failed with status %d", (int)result);
    return trek_cuda_sync_each ? trek_cuda_launched(call, queue, cudaPeekAtLastError()) : TREK_OK;
}

#else
typedef int trek_dnn_plans_are_absent; /* C does not allow an empty translation unit */
#endif
