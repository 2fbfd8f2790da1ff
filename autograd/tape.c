/* SPDX-License-Identifier: Apache-2.0 */
/* The tape of a thread: making and releasing nodes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/offload_internal.h"
#include "tensor/thread_end.h"
#include "tensor/trace.h"

_Thread_local trek_grad_mode trek_grad_mode_here;
_Thread_local trek_tape *trek_tape_here;

/* Tapes outlive their threads (nodes may as well) and are reused by later threads. */
static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;
static trek_tape *orphans;

static void orphan_tape(void)
{
    trek_tape *tape = trek_tape_here;
    trek_offload_thread_end(tape);
    pthread_mutex_lock(&orphans_lock);
    tape->next_orphan = orphans;
    orphans = tape;
    pthread_mutex_unlock(&orphans_lock);
    trek_tape_here = NULL;
}

trek_tape *trek_tape_get(void)
{
    if (trek_tape_here)
        return trek_tape_here;
    pthread_mutex_lock(&orphans_lock);
    trek_tape *tape = orphans;
    if (tape)
        orphans = tape->next_orphan;
    pthread_mutex_unlock(&orphans_lock);
    if (!tape)
        tape = calloc(1, sizeof *tape); /* never freed, like the caches of threads */
    if (!tape) {
        trek_fail(TREK_ERR_MEMORY, "tape: out of memory: no tape for this thread");
        return NULL;
    }
    trek_thread_at_end(TREK_THREAD_TAPE, orphan_tape);
    return trek_tape_here = tape;
}

static inline size_t aligned(size_t bytes) { return (bytes + 15) & ~(size_t)15; }

static void fill_edge(trek_edge *edge, trek_var *input)
{
    edge->node = NULL;
    edge->leaf = NULL;
    edge->ndim = 0;
    edge->dtype = TREK_DTYPE_COUNT;
    if (!input)
        return;
    const trek_tensor *t = input->data;
    edge->dtype = t->dtype;
    edge->ndim = t->ndim;
    trek_copy_dims(edge->sizes, t->sizes, t->ndim);
    if (!input->requires_grad)
        return;
    if (input->node) {
        trek_ref_take(&input->node->refs);
        edge->node = input->node;
        edge->output = input->output;
    } else {
        trek_ref_take(&input->refs);
        edge->leaf = input;
    }
}

static void drop_strays(trek_tape *tape);

trek_node *trek_node_new(const trek_op *op, trek_var *const *inputs, int n_inputs, int n_outputs, const trek_attrs *attrs,
                         int n_saved)
{
    trek_tape *tape = trek_tape_here ? trek_tape_here : trek_tape_get();
    if (!tape)
        return NULL;
    if (atomic_load_explicit(&tape->strays, memory_order_relaxed))
        drop_strays(tape);
    size_t at_attrs = aligned(sizeof(trek_node)), at_saved = at_attrs + (attrs ? aligned(sizeof *attrs) : 0);
    size_t at_edges = at_saved + aligned((size_t)n_saved * sizeof(trek_saved_tensor));
    size_t bytes = at_edges + (size_t)n_inputs * sizeof(trek_edge);
    char *block = bytes <= 1024 ? trek_block_alloc_fixed(bytes) : trek_block_alloc(bytes);
    if (!block)
        return NULL;
    trek_node *node = (trek_node *)(void *)block;
    atomic_init(&node->refs, 1);
    node->freed = node->held = node->whole = false;
    node->group_id = 0;
    node->n_saved = 0;
    node->n_inputs = n_inputs;
    node->n_outputs = n_outputs;
    node->walk = 0;
    node->path = 0;
    if (trek_trace_records())
        node->path = trek_trace_path_here();
    node->op = op;
    node->context = NULL;
    node->tape = tape;
    node->next = NULL;
    node->grad = NULL;
    node->partial = NULL;
    node->more_grads = node->group_grads = NULL;
    node->hooks = NULL;
    node->attrs = NULL;
    if (attrs) {
        node->attrs = (trek_attrs *)(void *)(block + at_attrs);
        *node->attrs = *attrs;
    }
    node->saved = (trek_saved_tensor *)(void *)(block + at_saved);
    trek_edge *edges = node->edges = (trek_edge *)(void *)(block + at_edges);
    for (int k = 0; k < n_inputs; k++)
        fill_edge(&edges[k], inputs[k]);
    node->serial = ++tape->next_serial;
    node->prev = tape->last;
    if (tape->last)
        tape->last->next = node;
    tape->last = node;
    tape->count++;
    return node;
}

static void unlink_node(trek_node *node)
{
    trek_tape *tape = node->tape;
    if (node->next)
        node->next->prev = node->prev;
    else
        tape->last = node->prev;
    if (node->prev)
        node->prev->next = node->next;
    tape->count--;
}

/* Removes a node without references from the list, or hands it to the owner of its tape. */
static void bury(trek_node *node, trek_node **dead)
{
    trek_tape *tape = node->tape;
    if (tape == trek_tape_here) {
        unlink_node(node);
        node->next = *dead;
        *dead = node;
        return;
    }
    trek_node *top = atomic_load_explicit(&tape->strays, memory_order_relaxed);
    do
        node->grad = (trek_var *)(void *)top; /* links the stack: a dead node has no gradient */
    while (!atomic_compare_exchange_weak_explicit(&tape->strays, &top, node, memory_order_release, memory_order_relaxed));
}

void trek_function_context_free(trek_function_context *context)
{
    for (int s = 0; s < context->n_saved; s++) {
        if (context->saved[s].offloads)
            trek_offload_forget(context->tape, context->saved[s].tensor);
        trek_tensor_release(context->saved[s].tensor);
    }
    if (context->function->free && context->data)
        context->function->free(context->data);
    trek_free(context);
}

/* Releases what the node holds; nodes that die as a result join the list. A walk on its way to a node takes over the
 * reference. */
static void let_go(trek_node *node, trek_node **dead)
{
    trek_saved_tensor *saved = node->saved;
    int n_saved = node->n_saved;
    node->n_saved = 0;
    for (int k = 0; k < n_saved; k++) {
        if (saved[k].offloads)
            trek_offload_forget(node->tape, saved[k].tensor);
        trek_tensor_drop(saved[k].tensor);
    }
    trek_edge *edge = node->edges, *end = edge + node->n_inputs;
    for (; edge < end; edge++) {
        trek_var *leaf = edge->leaf;
        trek_node *from = edge->node;
        edge->leaf = NULL;
        edge->node = NULL;
        if (leaf)
            trek_var_drop(leaf);
        if (!from)
            continue;
        if (from->walk && !from->held)
            from->held = true;
        else if (trek_ref_drop(&from->refs))
            bury(from, dead);
    }
}

static void free_hooks(trek_node *node)
{
    while (node->hooks) {
        trek_hook *next = node->hooks->next;
        trek_free(node->hooks);
        node->hooks = next;
    }
}

/* Frees one node at a time without recursion, because a tape may be a million nodes long. */
static void free_dead(trek_node *dead)
{
    while (dead) {
        trek_node *node = dead;
        dead = node->next;
        if (!node->freed) /* otherwise the pass has done that */
            let_go(node, &dead);
        if (node->context)
            trek_function_context_free(node->context);
        if (node->grad)
            trek_var_drop(node->grad);
        for (int k = 1; node->more_grads && k < node->n_outputs; k++)
            trek_var_release(node->more_grads[k]);
        if (node->more_grads)
            trek_free(node->more_grads);
        free_hooks(node);
        trek_block_drop(node);
    }
}

static void drop_strays(trek_tape *tape)
{
    trek_node *node = atomic_exchange_explicit(&tape->strays, NULL, memory_order_acquire), *dead = NULL;
    while (node) {
        trek_node *next = (trek_node *)(void *)node->grad;
        node->grad = NULL;
        unlink_node(node);
        node->next = dead;
        dead = node;
        node = next;
    }
    free_dead(dead);
}

void trek_node_release(trek_node *node)
{
    if (!trek_ref_drop(&node->refs))
        return;
    trek_node *dead = NULL;
    bury(node, &dead);
    free_dead(dead);
}

void trek_node_free_saved(trek_node *node)
{
    trek_node *dead = NULL;
    node->freed = true;
    let_go(node, &dead);
    if (node->context)
        trek_function_context_free(node->context);
    node->context = NULL;
    if (dead)
        free_dead(dead);
}

int64_t trek_tape_size(void)
{
    trek_tape *tape = trek_tape_here;
    if (tape)
        drop_strays(tape);
    return tape ? tape->count : 0;
}

void trek_no_grad_begin(void) { trek_grad_mode_here.no_grad_depth++; }

void trek_no_grad_end(void)
{
    if (trek_grad_mode_here.no_grad_depth > 0)
        trek_grad_mode_here.no_grad_depth--;
    else
        trek_fail(TREK_ERR_STATE, "no_grad_end: called without trek_no_grad_begin before");
}

bool trek_grad_enabled(void) { return trek_recording(); }
