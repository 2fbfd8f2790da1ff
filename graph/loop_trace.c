/* SPDX-License-Identifier: Apache-2.0 */
/* The values that a loop's passes publish. */
#include <string.h>

#include "autograd/ops.h"
#include "graph/graph_internal.h"
#include "graph/loop_internal.h"

static _Thread_local loop_run *running; /* the innermost loop of this thread */

loop_run *trek_loop_enter(loop_run *run)
{
    loop_run *before = running;
    running = run;
    return before;
}

void trek_loop_free_traces(loop_traces *traces)
{
    for (int k = 0; k < traces->n; k++) {
        loop_trace *trace = &traces->list[k];
        for (int j = 0; j < trace->n; j++)
            trek_var_release(trace->values[j]);
        trek_free(trace->values);
        trek_free(trace->name);
    }
    trek_free(traces->list);
    *traces = (loop_traces){ 0 };
}

void trek_loop_keep_traces(trek_loop *loop, loop_traces *traces)
{
    pthread_mutex_lock(&loop->lock);
    loop_traces old = loop->traces;
    loop->traces = *traces;
    pthread_mutex_unlock(&loop->lock);
    *traces = (loop_traces){ 0 };
    trek_loop_free_traces(&old);
}

static loop_trace *find(loop_traces *traces, const char *name)
{
    for (int k = 0; k < traces->n; k++)
        if (strcmp(traces->list[k].name, name) == 0)
            return &traces->list[k];
    return NULL;
}

static loop_trace *add(loop_traces *traces, const char *name)
{
    if (trek_array_grow(&traces->list, &traces->capacity, traces->n + 1, sizeof *traces->list) != TREK_OK)
        return NULL;
    char *copy = trek_strdup(name);
    if (!copy)
        return NULL;
    traces->list[traces->n] = (loop_trace){ .name = copy, .pass = -1 };
    return &traces->list[traces->n++];
}

/* Gives rows that have halted their last value here, too. */
static trek_var *with_halted(const loop_run *run, const loop_trace *trace, trek_var *value)
{
    trek_var *last = trace->n > 0 ? trace->values[trace->n - 1] : NULL;
    if (!run->mask || !last || trek_var_ndim(value) == 0 || trek_var_size(value, 0) != run->rows ||
        !trek_shape_equal(trek_var_shape(last), trek_var_shape(value)))
        return value;
    return trek_where(trek_verb_by_rows(run->mask, value), last, value);
}

trek_status trek_loop_record(loop_run *run, const char *name, trek_var *value)
{
    loop_trace *trace = find(&run->traces, name);
    if (trace && trace->pass == run->pass)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "loop: name: \"%s\" was published twice in pass %lld; a name is published once a pass", name,
                         (long long)run->pass);
    if (!trace && !(trace = add(&run->traces, name)))
        return trek_error_status();
    if (!(value = with_halted(run, trace, value)))
        return trek_error_status();
    if (trek_array_grow(&trace->values, &trace->capacity, trace->n + 1, sizeof *trace->values) != TREK_OK)
        return trek_error_status();
    trace->values[trace->n++] = trek_var_retain(value);
    trace->pass = run->pass;
    return TREK_OK;
}

trek_status trek_loop_publish(const char *name, trek_var *value)
{
    if (!name || !*name || !value)
        return trek_fail_missing("loop_publish", value ? "name" : "value");
    return running ? trek_loop_record(running, name, value) : TREK_OK;
}

void trek_loop_clear(trek_module *loop) { trek_loop_keep_traces((trek_loop *)loop, &(loop_traces){ 0 }); }

int trek_loop_trace_count(trek_module *module, const char *name)
{
    trek_loop *loop = (trek_loop *)module;
    pthread_mutex_lock(&loop->lock);
    const loop_trace *trace = find(&loop->traces, name);
    int n = trace ? trace->n : 0;
    pthread_mutex_unlock(&loop->lock);
    return n;
}

trek_var *trek_loop_trace_value(trek_module *module, const char *name, int k)
{
    trek_loop *loop = (trek_loop *)module;
    pthread_mutex_lock(&loop->lock);
    const loop_trace *trace = find(&loop->traces, name);
    trek_var *value = trace && k >= 0 && k < trace->n ? trace->values[k] : NULL;
    pthread_mutex_unlock(&loop->lock);
    return value;
}

trek_status trek_loop_detach(trek_module *module)
{
    trek_loop *loop = (trek_loop *)module;
    trek_status status = TREK_OK;
    for (int k = 0; k < loop->traces.n; k++)
        for (int j = 0; j < loop->traces.list[k].n && status == TREK_OK; j++)
            status = trek_detach_slot(&loop->traces.list[k].values[j]);
    return status;
}
