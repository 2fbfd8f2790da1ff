/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/gate.h"

#include <pthread.h>

typedef struct calls {
    uint64_t begun, given;
} calls;

struct trek_cuda_gate {
    trek_cuda_gate *next;
    bool open;
    int n;
    calls calls[]; /* of each rank */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static trek_cuda_gate *gates;
static int passing; /* calls of the driver that are running */

trek_cuda_gate *trek_cuda_gate_new(int n)
{
    trek_cuda_gate *gate = trek_calloc(1, sizeof *gate + (size_t)n * sizeof gate->calls[0]);
    if (!gate)
        return NULL;
    gate->n = n;
    pthread_mutex_lock(&lock);
    gate->next = gates;
    gates = gate;
    pthread_mutex_unlock(&lock);
    return gate;
}

void trek_cuda_gate_free(trek_cuda_gate *gate)
{
    if (!gate)
        return;
    pthread_mutex_lock(&lock);
    trek_cuda_gate **at = &gates;
    while (*at != gate)
        at = &(*at)->next;
    *at = gate->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    trek_free(gate);
}

/* Returns whether some ranks have begun a collective that not all have launched. */
static bool is_closed(const trek_cuda_gate *gate)
{
    uint64_t most = 0, least = UINT64_MAX;
    for (int r = 0; r < gate->n; r++) {
        most = gate->calls[r].begun > most ? gate->calls[r].begun : most;
        least = gate->calls[r].given < least ? gate->calls[r].given : least;
    }
    return !gate->open && most > least;
}

void trek_cuda_gate_begin(trek_cuda_gate *gate, int rank)
{
    if (!gate)
        return;
    pthread_mutex_lock(&lock);
    gate->calls[rank].begun++;
    while (passing > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void trek_cuda_gate_end(trek_cuda_gate *gate, int rank)
{
    if (!gate)
        return;
    pthread_mutex_lock(&lock);
    gate->calls[rank].given++;
    if (!is_closed(gate))
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void trek_cuda_gate_open(trek_cuda_gate *gate)
{
    if (!gate)
        return;
    pthread_mutex_lock(&lock);
    gate->open = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool one_is_closed(void)
{
    for (const trek_cuda_gate *gate = gates; gate; gate = gate->next)
        if (is_closed(gate))
            return true;
    return false;
}

void trek_cuda_pass(void)
{
    pthread_mutex_lock(&lock);
    while (one_is_closed())
        pthread_cond_wait(&changed, &lock);
    passing++;
    pthread_mutex_unlock(&lock);
}

void trek_cuda_passed(void)
{
    pthread_mutex_lock(&lock);
    if (--passing == 0)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
